"""Architectures qwen3, qwen3vl and openelm: llama's layers; queries and keys are normed by head
before RoPE."""

from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

ARCHITECTURE = Architecture(
    reading.decoder(reading.layer_maker(mixer={"head_norms": True}), neighbours=False),
    decoder_tensors,
)
