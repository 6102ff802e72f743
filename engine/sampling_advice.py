"""What a file says of how its model's tokens are best chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import EngineError
from engine.sampling import Sampling

_KEYS = {
    "temperature": ("general.sampling.temp", float),
    "top_k": ("general.sampling.top_k", int),
    "top_p": ("general.sampling.top_p", float),
    "min_p": ("general.sampling.min_p", float),
    "repeat_penalty": ("general.sampling.penalty_repeat", float),
    "repeat_window": ("general.sampling.penalty_last_n", int),
}
_FLOAT32_DIGITS = 6


def sampling_advice(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the fields of ``Sampling`` that a GGUF file recommends, and their values.

    Source: llama.cpp pull request 17120. What is of another type or out of range is left out, and so is what the chain
    does not have.
    """
    return {
        name: value
        for name, (key, wanted) in _KEYS.items()
        if (value := _number(metadata.get(key), wanted)) is not None and _is_allowed(name, value)
    }


def _number(value: object, wanted: type) -> float | None:
    if type(value) is int and wanted is int:
        return max(value, 0)  # -1 leaves nothing out; so does 0
    # 0.95 comes as a float32, 0.949999988.
    return round(value, _FLOAT32_DIGITS) if type(value) is float and wanted is float else None


def _is_allowed(name: str, value: float) -> bool:
    try:
        Sampling(**{name: value})  # type: ignore[arg-type]
    except EngineError:
        return False
    return True
