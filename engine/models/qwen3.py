"""The qwen3, qwen3vl and openelm architectures: llama's layers with every head's query and key
normed before rope."""

from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

ARCHITECTURE = Architecture(
    reading.decoder(reading.layer_maker(mixer={"head_norms": True}), neighbours=False),
    decoder_tensors,
)
