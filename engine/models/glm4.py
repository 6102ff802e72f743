"""Architecture glm4 (GLM 4, dense): norms before and after the branches, gate and up in one
tensor."""

from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, optional_qkv_biases

ARCHITECTURE = Architecture(
    reading.decoder(reading.layer_maker(form={"is_fused": True}, norm_after=True), neighbours=True),
    all_of(decoder_tensors, optional_qkv_biases),
)
