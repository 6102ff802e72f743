"""Architectures exaone and pangu-embedded (EXAONE 3, 3.5; openPangu Embedded): llama's layers; RoPE
pairs halves."""

from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_other_biases,
    optional_qkv_biases,
    rope_factors,
)

ARCHITECTURE = Architecture(
    reading.decoder(neighbours=False, factors="rope_freqs.weight"),
    all_of(decoder_tensors, optional_qkv_biases, optional_other_biases, rope_factors),
)
