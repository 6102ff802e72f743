"""Architecture ernie4_5 (ERNIE 4.5, dense): llama's layers."""

from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_other_biases,
    optional_qkv_biases,
)

ARCHITECTURE = Architecture(
    reading.decoder(neighbours=True),
    all_of(decoder_tensors, optional_qkv_biases, optional_other_biases),
)
