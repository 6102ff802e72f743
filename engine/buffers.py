"""The activations that operations hand to each other, allocated once for the widest block of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.memory import Memory

COLUMNS_AT_ONCE = 4
"""Prefill kernels read columns four at a time, so every buffer has room for three that do not exist."""


FORMS: dict[str, tuple[int, int, int]] = {
    "f16": (4, 0, 0),
    "bf16": (4, 0, 0),
    "q8_k": (1, 256, 48),
    "q8_0": (1, 32, 4),
}
"""Form -> (bytes of an element, elements of a group or 0, bytes of a group's sums)."""


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
        """Addresses of the vector in a form of ``quants.base.ActivationForm``; allocated when first asked for.

        The 16-bit forms are float32 with rounded values, so that kernels read them as they read ``f32``.
        """
        if name == "f32":
            return Quantized(self.address, 0, 0)
        if name not in self._forms:
            item_bytes, group, sums_bytes = FORMS[name]
            n = self._columns * self.n
            n_groups = n // group if group else 0
            parts = [Memory(item_bytes * n), Memory(4 * n_groups), Memory(sums_bytes * n_groups)]
            self._forms[name] = Quantized(*(part.address for part in parts)), parts
        return self._forms[name][0]

    def array(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """View as (columns, n) float32."""
        return self._memory.array(np.float32, (self._columns, self.n))

    @property
    def n_bytes(self) -> int:
        """Memory taken so far, all forms together."""
        return self._memory.n_bytes + sum(part.n_bytes for _, parts in self._forms.values() for part in parts)
