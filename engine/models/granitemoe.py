"""Architecture granitemoe (Granite 3 1B-A400M, 3B-A800M): granite's layers with experts, some of
them shared."""

from collections.abc import Callable
from dataclasses import replace

from engine.config import Dense, Experts, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture
from engine.models.granite import granite_config, granite_tensors


def granite_experts(read: Hyperparameters, is_fused: bool = False) -> Callable[[Dense], Experts]:
    """Return a function that returns the experts of a layer, given its dense feed-forward.

    Args:
        is_fused: Whether gate and up of the shared expert are one tensor.
    """

    def experts(dense: Dense) -> Experts:
        width = reading.shared_width(read)
        routed = reading.experts(read, dense.hidden_dim, Router(renormalised=True))
        return replace(routed, shared=Dense(width, is_fused=is_fused) if width else None)

    return experts


def _read(read: Hyperparameters) -> ModelConfig:
    return granite_config(read, granite_experts(read))


ARCHITECTURE = Architecture(_read, granite_tensors)
