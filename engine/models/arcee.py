"""The arcee architecture (AFM): llama's layers with a feed-forward that squares what is above zero
and has no gate."""

from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, rope_factors

ARCHITECTURE = Architecture(
    reading.decoder(
        reading.layer_maker(form=reading.SQUARED), neighbours=True, factors="rope_freqs.weight"
    ),
    all_of(decoder_tensors, rope_factors),
)
