"""Hyperparameters out of GGUF metadata: typed and bounded, whatever a file holds.

Knows no key by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from engine.errors import EngineError, GGUFError

LEAST_POSITIVE = 2.0**-126
"""Smallest normal float32, the type of such numbers in files: no quotient of two of them overflows
float64."""


class Hyperparameters:
    """The keys of one architecture; each is named here without the architecture's name before it.

    Args:
        metadata: of the file.
        architecture: ``general.architecture``.
        file_name: begins each message.
        tensors: names of the file's tensors, which tell some models of a family apart.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        architecture: str,
        file_name: str,
        tensors: Collection[str] = (),
    ) -> None:
        self.metadata = metadata
        self.architecture = architecture
        self.tensors = tensors
        self._file_name = file_name

    def under(self, prefix: str) -> Hyperparameters:
        """Look at keys of the same file that begin with another name than the architecture's."""
        return Hyperparameters(self.metadata, prefix, self._file_name, self.tensors)

    def key(self, name: str) -> str:
        """Spell a key as the file does."""
        return f"{self.architecture}.{name}"

    def fail(self, problem: str) -> EngineError:
        """Make the exception for a problem: one line, beginning with the file's name."""
        return GGUFError(f"{self._file_name}: {problem}")

    def raw(self, name: str) -> Any:
        """Return the value as the file has it, or None."""
        return self.metadata.get(self.key(name))

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Read an integer between two bounds; required where there is no default."""
        if default is not None and self.raw(name) is None:
            return default
        return self._bounded(name, self._present(name, None), least, most)

    def per_layer(
        self, name: str, n_layers: int, least: int, most: int, default: int | None = None
    ) -> list[int]:
        """Read an integer that is given once, or once per layer; returns it for every layer."""
        value = self.raw(name)
        if not isinstance(value, np.ndarray):
            return [self.integer(name, least, most, default)] * n_layers
        if len(value) != n_layers:
            raise self.fail(f"{self.key(name)} has {len(value)} values for {n_layers} layers")
        if value.dtype.kind not in "iu":
            raise self.fail(f"{self.key(name)} is an array of {value.dtype}: must be integers")
        return [self._bounded(name, int(one), least, most) for one in value]

    def numbers(self, name: str, n_layers: int) -> list[float]:
        """Read a finite float that is given once, or once per layer; returns it for every layer."""
        value = self.raw(name)
        if not isinstance(value, np.ndarray):
            return [self.number(name)] * n_layers
        if len(value) != n_layers:
            raise self.fail(f"{self.key(name)} has {len(value)} values for {n_layers} layers")
        if value.dtype.kind != "f":
            raise self.fail(f"{self.key(name)} is an array of {value.dtype}: must be floats")
        if not np.isfinite(value).all():
            raise self.fail(f"{self.key(name)} holds NaN or infinity: must be finite")
        return [float(one) for one in value]

    def number(self, name: str, default: float | None = None) -> float:
        """Read a finite float; required where there is no default."""
        value = self._present(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.fail(f"{self.key(name)} is {kind_of(value)}: must be a number")
        if not math.isfinite(value):
            raise self.fail(f"{self.key(name)} is {value}: must be finite")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """Read a finite float above zero, and not so small that what is divided by it overflows."""
        value = self.number(name, default)
        if value < LEAST_POSITIVE:
            raise self.fail(
                f"{self.key(name)} is {value}: must be positive, and no smaller than float32 "
                f"can hold"
            )
        return value

    def positive_or_none(self, name: str) -> float | None:
        """Read a float above zero that may be missing."""
        if self.raw(name) is None:
            return None
        return self.positive(name)

    def flag(self, name: str, default: bool) -> bool:
        """Read a bool."""
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise self.fail(f"{self.key(name)} is {kind_of(value)}: must be a bool")
        return value

    def word(self, name: str, default: str) -> str:
        """Read a string."""
        value = self._present(name, default)
        if not isinstance(value, str):
            raise self.fail(f"{self.key(name)} is {kind_of(value)}: must be a string")
        return value

    def _present(self, name: str, default: Any) -> Any:
        value = self.raw(name)
        if value is None and default is None:
            raise self.fail(f"{self.key(name)} is missing")
        if value is None:
            return default
        return value

    def _bounded(self, name: str, value: Any, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(f"{self.key(name)} is {kind_of(value)}: must be an integer")
        if not least <= value <= most:
            raise self.fail(f"{self.key(name)} is {value}: must be {least} to {most}")
        return value


def kind_of(value: Any) -> str:
    """Name the kind of a metadata value, for messages."""
    if isinstance(value, (list, np.ndarray)):
        return "an array"
    return {bool: "a bool", str: "a string", int: "an integer", float: "a float"}.get(
        type(value), "of an unknown type"
    )
