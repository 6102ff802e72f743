"""Architecture refact (Refact 1.6B): llama's layers with ALiBi instead of RoPE."""

from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, optional_qkv_biases

ARCHITECTURE = Architecture(
    reading.decoder(reading.layer_maker(mixer={"rope": None, "alibi": 8.0}), neighbours=False),
    all_of(decoder_tensors, optional_qkv_biases),
)
