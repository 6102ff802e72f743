"""Architecture nomic-bert (Nomic Embed 1 and 1.5): BERT with RoPE and gates, without biases of
products."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture
from engine.models.bert import no_head, post_norm_config, post_norm_layers, post_norm_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    layers = reading.layer_maker(
        mixer={"sees_after": reading.MAX_CONTEXT_LENGTH}, norm_before=False
    )
    return post_norm_config(read, layers)


ARCHITECTURE = Architecture(_read, post_norm_tensors, post_norm_layers, no_head)
