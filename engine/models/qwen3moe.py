"""Architecture qwen3moe (Qwen 3 30B-A3B, 235B-A22B): qwen3's layers with experts in each."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors
from engine.models.qwen3 import deepstack_parts


def _read(read: Hyperparameters) -> ModelConfig:
    n_deepstack = deepstack_parts(read)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        experts = reading.experts(
            read, reading.expert_width(read, dense), Router(renormalised=True)
        )
        mixer = replace(reading.with_sections(read, attention), head_norms=True)
        return Layer(mixer, experts, adds_picture_part=number < n_deepstack)

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
