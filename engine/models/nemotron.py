"""Architecture nemotron (Nemotron 4, Minitron): LayerNorm, and a feed-forward with squared ReLU
without a gate."""

from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    norm_biases,
    optional_other_biases,
    optional_qkv_biases,
)

ARCHITECTURE = Architecture(
    reading.decoder(reading.layer_maker(form=reading.SQUARED), neighbours=False, layer_norm=True),
    all_of(decoder_tensors, norm_biases, optional_qkv_biases, optional_other_biases),
)
