"""Architecture chatglm (ChatGLM 3, GLM 4 9B of 2024): fused projections, and RoPE on a part of each
head."""

from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, optional_qkv_biases

ARCHITECTURE = Architecture(
    reading.decoder(reading.layer_maker(form={"is_fused": True}), neighbours=True),
    all_of(decoder_tensors, optional_qkv_biases),
)
