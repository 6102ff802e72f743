"""Architecture granite_swa (Granite with windows): granite's layers, dense or with experts, all
with sinks."""

from dataclasses import replace

from engine.config import Attention, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture
from engine.models.granite import granite_config, granite_tensors
from engine.models.granitemoe import granite_experts

ROPE_PATTERN = "attention.rope_pattern"


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration.

    One list gives the layers with a window, another the layers with RoPE; without the second, all
    layers have RoPE.
    """
    has_experts = read.integer("expert_count", 0, reading.MAX_EXPERTS, default=0) > 0
    config = granite_config(read, granite_experts(read, is_fused=True) if has_experts else None)
    window = reading.window(read)
    has_window = reading.layer_flags(read, "attention.sliding_window_pattern")
    if read.raw(ROPE_PATTERN) is None:
        has_rope = [True] * config.n_layers
    else:
        has_rope = reading.layer_flags(read, ROPE_PATTERN)

    def layer(number: int, plain: Layer) -> Layer:
        attention = plain.mixer
        assert isinstance(attention, Attention)
        if has_rope[number]:
            rope = attention.rope
        else:
            rope = None
        if has_window[number]:
            seen = window
        else:
            seen = None
        return replace(plain, mixer=replace(attention, sinks=True, rope=rope, window=seen))

    return replace(
        config, layers=tuple(layer(*numbered_layer) for numbered_layer in enumerate(config.layers))
    )


ARCHITECTURE = Architecture(_read, granite_tensors)
