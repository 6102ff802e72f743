"""Families of encoders, by the name of their projector; a family is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.vision.family import EncoderFamily

FAMILIES = {
    "qwen3vl_merger": "Qwen3-VL, Qwen3.5 and newer",
    "lfm2": "LFM2-VL and LFM2.5-VL",
    "gemma3": "Gemma 3",
    "gemma4v": "Gemma 4",
    "gemma4uv": "Gemma 4 12B",
    "idefics3": "SmolVLM",
    "pixtral": "Pixtral, Mistral 3",
}
"""Models of each projector; the module of a family has the projector's name."""
NOT_YET = (
    "internvl", "mlp", "ldp", "ldpv2", "resampler", "adapter",
    "qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o", "llama4", "lightonocr", "glm_edge", "glm4v",
    "cogvlm", "kimivl", "janus_pro", "minicpmv", "nemotron_v2_vl", "youtuvl", "deepseekocr",
    "gemma3nv",
)  # fmt: skip
"""Projectors of other engines that are known by name and not supported."""


def load_family(projector: str) -> EncoderFamily:
    """Import a family of ``FAMILIES``."""
    family: EncoderFamily = import_module(f"engine.vision.families.{projector}").FAMILY
    return family
