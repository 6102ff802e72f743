"""Architecture bloom (BLOOM, BLOOMZ): a normed embedding, ALiBi, biases everywhere."""

from engine.config import ModelConfig
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    fused_tensors,
    norm_biases,
    other_biases,
    qkv_biases,
)
from engine.weights.weights import TensorSpec


def _embedding_norm(config: ModelConfig) -> dict[str, TensorSpec]:
    return {f"token_embd_norm.{suffix}": TensorSpec((config.dim,)) for suffix in ("weight", "bias")}


ARCHITECTURE = Architecture(
    reading.decoder(
        reading.layer_maker(mixer={"rope": None, "alibi": 8.0}, form=reading.UNGATED),
        neighbours=False,
        layer_norm=True,
        embedding_norm=True,
    ),
    all_of(fused_tensors, _embedding_norm, norm_biases, qkv_biases, other_biases),
)
