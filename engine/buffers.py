"""The activations that operations hand to each other, allocated once for the widest block of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.memory import Memory

COLUMNS_AT_ONCE = 4
"""Prefill kernels read columns four at a time, so every buffer has room for three that do not exist."""


@dataclass(frozen=True)
class Quantized:
    """An int8 form of a vector: q int8 ``(token, n)``, d f32, sums of groups (see ``quantize_activations``)."""

    q: int
    d: int
    sums: int


class Activations:
    """One named vector per token, float32 ``(columns, n)``, and its int8 forms as far as somebody asked for them."""

    def __init__(self, name: str, n: int, columns: int) -> None:
        self.name = name
        self.n = n
        self._columns = (columns + COLUMNS_AT_ONCE - 1) // COLUMNS_AT_ONCE * COLUMNS_AT_ONCE
        self._memory = Memory(4 * n * self._columns)
        self.address = self._memory.address
        self._forms: dict[str, tuple[Quantized, list[Memory]]] = {}

    def form(self, name: str) -> Quantized:
        """Addresses of the vector as ``f32``, ``q8_k`` or ``q8_0``; int8 forms are allocated when first asked for."""
        if name == "f32":
            return Quantized(self.address, 0, 0)
        if name not in self._forms:
            group, sums_bytes = {"q8_k": (256, 48), "q8_0": (32, 4)}[name]
            n_groups = self._columns * self.n // group
            parts = [Memory(self._columns * self.n), Memory(4 * n_groups), Memory(sums_bytes * n_groups)]
            self._forms[name] = Quantized(*(part.address for part in parts)), parts
        return self._forms[name][0]

    def array(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """View as (columns, n) float32."""
        return self._memory.array(np.float32, (self._columns, self.n))

    @property
    def n_bytes(self) -> int:
        """Memory taken so far, all forms together."""
        return self._memory.n_bytes + sum(part.n_bytes for _, parts in self._forms.values() for part in parts)
