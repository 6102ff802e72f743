"""Architecture phi2 (Phi 1.5 and 2): both branches from one LayerNorm, biases everywhere, also of
the head."""

from engine.config import ModelConfig
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    norm_biases,
    other_biases,
    qkv_biases,
)
from engine.weights.weights import TensorSpec


def _head_bias(config: ModelConfig) -> dict[str, TensorSpec]:
    return {"output.bias": TensorSpec((config.vocab_size,))}


ARCHITECTURE = Architecture(
    reading.decoder(
        reading.layer_maker(form=reading.UNGATED, side_by_side=True),
        neighbours=False,
        layer_norm=True,
    ),
    all_of(decoder_tensors, norm_biases, qkv_biases, other_biases, _head_bias),
)
