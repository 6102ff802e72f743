"""Architecture mpt (MPT 7B, 30B): ALiBi or learned positions; no gate, rarely biases."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    fused_tensors,
    optional_norm_biases,
    optional_other_biases,
    optional_qkv_biases,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; models without learned positions have ALiBi."""
    alibi, bound = (
        reading.number_or_none(read, f"attention.{name}")
        for name in ("max_alibi_bias", "clamp_kqv")
    )
    is_learned = "position_embd.weight" in read.tensors
    if is_learned:
        n_positions = read.integer("context_length", 1, reading.MAX_CONTEXT_LENGTH)
    else:
        n_positions = 0
    layers = reading.layer_maker(
        mixer={"rope": None, "alibi": alibi or 0.0, "bound": bound}, form=reading.UNGATED
    )
    return reading.decoder_config(
        read, layers, neighbours=False, layer_norm=True, learned_positions=n_positions
    )


ARCHITECTURE = Architecture(
    _read, all_of(fused_tensors, optional_norm_biases, optional_qkv_biases, optional_other_biases)
)
