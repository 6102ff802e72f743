"""Architecture plamo (PLaMo 13B): parallel attention and feed-forward from one norm."""

from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

ARCHITECTURE = Architecture(
    reading.decoder(reading.layer_maker(side_by_side=True), neighbours=False), decoder_tensors
)
