"""Sampling settings recommended in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import EngineError
from engine.sampling.settings import Sampling

_KEYS = {
    "temperature": ("general.sampling.temp", float),
    "top_k": ("general.sampling.top_k", int),
    "top_p": ("general.sampling.top_p", float),
    "min_p": ("general.sampling.min_p", float),
    "xtc_probability": ("general.sampling.xtc_probability", float),
    "xtc_threshold": ("general.sampling.xtc_threshold", float),
    "repeat_penalty": ("general.sampling.penalty_repeat", float),
    "repeat_window": ("general.sampling.penalty_last_n", int),
}
_FLOAT32_DIGITS = 6
_ALL_CANDIDATES = -1


def sampling_advice(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the fields of ``Sampling`` that a GGUF file recommends, and their values.

    Values of another type, values out of range, and settings that the chain does not have are left
    out.
    Source: llama.cpp pull request 17120.
    """
    found: dict[str, Any] = {
        name: metadata[key]
        for name, (key, wanted) in _KEYS.items()
        if type(metadata.get(key)) is wanted
    }
    if found.get("top_k") == _ALL_CANDIDATES:
        found["top_k"] = 0
    return {name: _as_written(value) for name, value in found.items() if _is_allowed(name, value)}


def refused_keys(metadata: Mapping[str, Any]) -> list[str]:
    """Return the keys of recommendations that a GGUF file has and that ``sampling_advice`` leaves
    out."""
    taken = sampling_advice(metadata)
    return [key for name, (key, _) in _KEYS.items() if key in metadata and name not in taken]


def _as_written(value: Any) -> Any:
    """Return 0.95 for the float32 next to it, 0.949999988."""
    if isinstance(value, float):
        return round(value, _FLOAT32_DIGITS)
    return value


def _is_allowed(name: str, value: Any) -> bool:
    try:
        Sampling(**{name: value})
    except EngineError:
        return False
    return True
