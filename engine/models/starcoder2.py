"""Architecture starcoder2 (StarCoder 2): LayerNorm and biases everywhere, and a feed-forward
without a gate."""

from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    norm_biases,
    optional_qkv_biases,
    other_biases,
)

ARCHITECTURE = Architecture(
    reading.decoder(reading.layer_maker(form=reading.UNGATED), neighbours=False, layer_norm=True),
    all_of(decoder_tensors, norm_biases, optional_qkv_biases, other_biases),
)
