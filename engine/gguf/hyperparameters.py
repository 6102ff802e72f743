"""Hyperparameters from GGUF metadata: typed and bounded, whatever a file contains.

The module knows no key by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from engine.errors import EngineError, GGUFError

LEAST_POSITIVE = 2.0**-126
"""Smallest normal float32, the type of such numbers in files: a quotient of two such numbers does
not overflow float64."""


class Hyperparameters:
    """Keys of an architecture; callers name them without the prefix of the architecture.

    Args:
        metadata: Metadata of the file.
        architecture: ``general.architecture``.
        file_name: Name that each message begins with.
        tensors: Names of the file's tensors, which distinguish some models of a family.
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
        """Return the keys of the same file that begin with another prefix."""
        return Hyperparameters(self.metadata, prefix, self._file_name, self.tensors)

    def key(self, name: str) -> str:
        """Return a key with its prefix, as it is in the file."""
        return f"{self.architecture}.{name}"

    def fail(self, problem: str) -> EngineError:
        """Return the exception for a problem: one line that begins with the name of the file."""
        return GGUFError(f"{self._file_name}: {problem}")

    def raw(self, name: str) -> Any:
        """Return the value from the file, or None."""
        return self.metadata.get(self.key(name))

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Read an integer within bounds; it is required if there is no default."""
        if default is not None and self.raw(name) is None:
            return default
        return self._bounded(name, self._present(name, None), least, most)

    def per_layer(
        self, name: str, n_layers: int, least: int, most: int, default: int | None = None
    ) -> list[int]:
        """Read an integer that a file has once, or once per layer; return a value for each
        layer."""
        value = self.raw(name)
        if not isinstance(value, np.ndarray):
            return [self.integer(name, least, most, default)] * n_layers
        if len(value) != n_layers:
            raise self.fail(f"{self.key(name)} has {len(value)} values for {n_layers} layers")
        if value.dtype.kind not in "iu":
            raise self.fail(f"{self.key(name)} is an array of {value.dtype}: must be integers")
        return [self._bounded(name, int(number), least, most) for number in value]

    def numbers(self, name: str, n_layers: int) -> list[float]:
        """Read a finite float that a file has once, or once per layer; return a value for each
        layer."""
        value = self.raw(name)
        if not isinstance(value, np.ndarray):
            return [self.number(name)] * n_layers
        if len(value) != n_layers:
            raise self.fail(f"{self.key(name)} has {len(value)} values for {n_layers} layers")
        if value.dtype.kind != "f":
            raise self.fail(f"{self.key(name)} is an array of {value.dtype}: must be floats")
        if not np.isfinite(value).all():
            raise self.fail(f"{self.key(name)} holds NaN or infinity: must be finite")
        return [float(number) for number in value]

    def number(self, name: str, default: float | None = None) -> float:
        """Read a finite float; it is required if there is no default."""
        value = self._present(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.fail(f"{self.key(name)} is {kind_of(value)}: must be a number")
        if not math.isfinite(value):
            raise self.fail(f"{self.key(name)} is {value}: must be finite")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """Read a finite float above zero that is large enough to divide by."""
        value = self.number(name, default)
        if value < LEAST_POSITIVE:
            raise self.fail(
                f"{self.key(name)} is {value}: must be positive, and no smaller than float32 "
                f"can hold"
            )
        return value

    def positive_or_none(self, name: str) -> float | None:
        """Read an optional float above zero."""
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
    """Return the kind of a metadata value, for messages."""
    if isinstance(value, (list, np.ndarray)):
        return "an array"
    return {bool: "a bool", str: "a string", int: "an integer", float: "a float"}.get(
        type(value), "of an unknown type"
    )
