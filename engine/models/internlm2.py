"""Architecture internlm2 (InternLM 2 and 2.5): llama's layers."""

from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, optional_qkv_biases

ARCHITECTURE = Architecture(
    reading.decoder(neighbours=True), all_of(decoder_tensors, optional_qkv_biases)
)
