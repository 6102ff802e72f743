"""The nomic-bert architecture (Nomic Embed 1 and 1.5): BERT with rope and gates, without biases of products."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture
from engine.models.bert import no_head, post_norm_config, post_norm_layers, post_norm_tensors


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(replace(attention, sees_after=reading.MAX_CONTEXT_LENGTH), feed_forward, norm_before=False)


def _read(read: Hyperparameters) -> ModelConfig:
    return post_norm_config(read, _layer)


ARCHITECTURE = Architecture(_read, post_norm_tensors, post_norm_layers, no_head)
