"""Jalopy's engine: GGUF file in, tokens out. Knows nothing of any screen.

The public names are resolved on first use, so that importing the package costs nothing and never imports numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.cache.kv_types import KV_TYPES
    from engine.errors import EngineError
    from engine.model import Model
    from engine.sampling.sampler import Sampling
    from engine.session import Session
    from engine.tokenizer import Tokenizer

_HOMES = {
    "KV_TYPES": "engine.cache.kv_types",
    "EngineError": "engine.errors",
    "Model": "engine.model",
    "Sampling": "engine.sampling.sampler",
    "Session": "engine.session",
    "Tokenizer": "engine.tokenizer",
}

__all__ = ["KV_TYPES", "EngineError", "Model", "Sampling", "Session", "Tokenizer"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(home), name)
