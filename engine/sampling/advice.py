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
"""GGUF key and value type of each field of ``Sampling``."""
_FLOAT32_DIGITS = 6
_ALL_CANDIDATES = -1


def sampling_advice(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the fields of ``Sampling`` that a GGUF file recommends, and their values.

    Values of another type or out of range, and settings that the sampler lacks, are left out.
    Source: llama.cpp pull request 17120.
    """
    values: dict[str, Any] = {
        name: metadata[key]
        for name, (key, value_type) in _KEYS.items()
        if type(metadata.get(key)) is value_type
    }
    if values.get("top_k") == _ALL_CANDIDATES:
        values["top_k"] = 0
    return {name: _rounded(value) for name, value in values.items() if _is_allowed(name, value)}


def refused_keys(metadata: Mapping[str, Any]) -> list[str]:
    """Return the keys of recommendations in a GGUF file that ``sampling_advice`` leaves out."""
    advice = sampling_advice(metadata)
    return [key for name, (key, _) in _KEYS.items() if key in metadata and name not in advice]


def _rounded(value: Any) -> Any:
    """Return 0.95 for the nearest float32, 0.949999988."""
    if isinstance(value, float):
        return round(value, _FLOAT32_DIGITS)
    return value


def _is_allowed(name: str, value: Any) -> bool:
    try:
        Sampling(**{name: value})
    except EngineError:
        return False
    return True
