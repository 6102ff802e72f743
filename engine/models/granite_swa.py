"""The granite_swa architecture (Granite with windows): granite's layers, dense or with experts,
each with sinks."""

from dataclasses import replace

from engine.config import Attention, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture
from engine.models.granite import granite_config, granite_tensors
from engine.models.granitemoe import granite_experts

ROPE_PATTERN = "attention.rope_pattern"


def _read(read: Hyperparameters) -> ModelConfig:
    """Which layers have a window, and which are turned, are two lists; all are where the file has
    no second one."""
    has_experts = read.integer("expert_count", 0, reading.MAX_EXPERTS, default=0) > 0
    config = granite_config(read, granite_experts(read, is_fused=True) if has_experts else None)
    window = reading.window(read)
    slides = reading.layer_flags(read, "attention.sliding_window_pattern")
    if read.raw(ROPE_PATTERN) is None:
        turns = [True] * config.n_layers
    else:
        turns = reading.layer_flags(read, ROPE_PATTERN)

    def layer(number: int, one: Layer) -> Layer:
        attention = one.mixer
        assert isinstance(attention, Attention)
        if turns[number]:
            rope = attention.rope
        else:
            rope = None
        if slides[number]:
            seen = window
        else:
            seen = None
        return replace(one, mixer=replace(attention, sinks=True, rope=rope, window=seen))

    return replace(config, layers=tuple(layer(*one) for one in enumerate(config.layers)))


ARCHITECTURE = Architecture(_read, granite_tensors)
