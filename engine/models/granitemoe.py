"""The granitemoe architecture (Granite 3 1B-A400M, 3B-A800M): granite's layers with experts, some
shared."""

from collections.abc import Callable
from dataclasses import replace

from engine.config import Dense, Experts, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture
from engine.models.granite import granite_config, granite_tensors


def granite_experts(read: Hyperparameters, is_fused: bool = False) -> Callable[[Dense], Experts]:
    """Return the function that gives a layer's experts, in place of its dense feed-forward.

    Args:
        is_fused: gate and up of the shared one are one tensor.
    """

    def experts(dense: Dense) -> Experts:
        width = reading.shared_width(read)
        found = reading.experts(read, dense.hidden_dim, Router(renormalised=True))
        return replace(found, shared=Dense(width, is_fused=is_fused) if width else None)

    return experts


def _read(read: Hyperparameters) -> ModelConfig:
    return granite_config(read, granite_experts(read))


ARCHITECTURE = Architecture(_read, granite_tensors)
