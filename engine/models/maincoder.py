"""Architecture maincoder (Maincoder 1B): heads are normed after RoPE."""

from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

ARCHITECTURE = Architecture(
    reading.decoder(
        reading.layer_maker(mixer={"head_norms": True, "norms_turned": True}), neighbours=True
    ),
    decoder_tensors,
)
