"""Architecture arcee (AFM): llama's layers with a feed-forward without a gate, and squared ReLU."""

from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, rope_factors

ARCHITECTURE = Architecture(
    reading.decoder(
        reading.layer_maker(form=reading.SQUARED), neighbours=True, factors="rope_freqs.weight"
    ),
    all_of(decoder_tensors, rope_factors),
)
