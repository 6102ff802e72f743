"""Types of the KV cache, with their sizes and their conversion in NumPy.

The kernels of a type are in ``engine/kernels/kv_NAME.py``. This module does not import numba, and
imports NumPy on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ElementType:
    """Format of the elements of keys or values.

    Attributes:
        name: name in the name of a KV type.
        dtype: NumPy type of an item, which is one element, or two elements of four bits.
        bits: bits of one element.
        pack: converts (..., n) float32 to items (..., n * bits / bits of an item) and scales
            (..., n / group) or None, as the kernels write them.
        group: number of elements that share a float32 scale; 0 for types without scales.
        unpack_items: converts items to elements; None if items are elements.
    """

    name: str
    dtype: str
    bits: int
    pack: Callable[[Floats], tuple[Array, Array | None]]
    group: int = 0
    unpack_items: Callable[[Array], Array] | None = None

    @property
    def bytes_per_element(self) -> float:
        """Bytes per element, its share of a scale included."""
        if self.group:
            return self.bits / 8 + 4 / self.group
        return self.bits / 8

    def n_scales(self, width: int) -> int:
        """Return the number of scales of one position of a head of ``width`` elements."""
        if self.group:
            return width // self.group
        return 0

    def elements_bytes(self, width: int) -> int:
        """Return the bytes of one position of a head of ``width`` elements, without scales."""
        return width * self.bits // 8

    def bytes_of(self, width: int) -> int:
        """Return the bytes of one position of a head of ``width`` elements, scales included."""
        return self.elements_bytes(width) + 4 * self.n_scales(width)

    def unpack(self, items: Array, scales: Array | None) -> Floats:
        """Convert the result of ``pack`` back to (..., n) float32."""
        if self.unpack_items is None:
            elements = items
        else:
            elements = self.unpack_items(items)
        floats: Floats = elements.astype("f4")
        if scales is not None:
            floats *= scales.repeat(self.group, axis=-1)
        return floats


@dataclass(frozen=True)
class KVType:
    """Type of a KV cache: the formats of keys and values."""

    keys: ElementType
    values: ElementType

    @property
    def name(self) -> str:
        """Name in settings, such as "f16", or "q8_0/q4_0" if the two formats differ. With _ instead
        of / it ends the name of the kernels' file."""
        if self.keys is self.values:
            return self.keys.name
        return f"{self.keys.name}/{self.values.name}"

    @property
    def is_exact(self) -> bool:
        """Whether no element shares a scale with others."""
        return not (self.keys.group or self.values.group)

    @property
    def has_hadamard(self) -> bool:
        """Whether heads are multiplied by a Hadamard matrix before they are stored
        (``engine.cache.hadamard``)."""
        return not self.is_exact

    @property
    def bytes_per_element(self) -> float:
        """Mean of the bytes per element of keys and of values, scales included."""
        return (self.keys.bytes_per_element + self.values.bytes_per_element) / 2


def _pack_f16(x: Floats) -> tuple[Array, None]:
    return x.astype("f2"), None


def _pack_f32(x: Floats) -> tuple[Array, None]:
    return x.astype("f4"), None


def _pack_q8_0(x: Floats) -> tuple[Array, Array]:
    import numpy as np

    groups = _in_groups(x)
    elements, scales = _scaled(groups, 127.0, np.abs(groups).max(-1))
    return elements.astype(np.int8).reshape(x.shape), scales


def _pack_q4_0(x: Floats) -> tuple[Array, Array]:
    import numpy as np

    groups = _in_groups(x)
    top = np.abs(groups).max(-1)
    elements, scales = _scaled(groups, -8.0, np.where(groups.max(-1) == top, top, -top))
    halves = (
        np.minimum(elements, 7).astype(np.uint8).reshape(*x.shape[:-1], x.shape[-1] // 16, 2, 8)
        & 15
    )
    items = halves[..., 0, :] | halves[..., 1, :] << 4
    return items.reshape(*x.shape[:-1], x.shape[-1] // 2), scales


def _unpack_q4_0(items: Array) -> Array:
    import numpy as np

    eights = items.reshape(*items.shape[:-1], items.shape[-1] // 8, 1, 8)
    halves = np.concatenate([eights & 15, eights >> 4], axis=-2).astype(np.int8)
    return (halves ^ 8).reshape(*items.shape[:-1], 2 * items.shape[-1]) - 8


def _in_groups(x: Floats) -> Floats:
    return x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)


def _scaled(groups: Floats, most: float, top: Floats) -> tuple[Array, Array]:
    """Return (..., n, 32) as whole numbers, with ``top`` (..., n) scaled to ``most``, and the
    scales."""
    import numpy as np

    inverse = np.divide(most, top, out=np.zeros(top.shape), where=top != 0, dtype=np.float64)
    return np.rint(groups * inverse[..., None]), (top / np.float64(most)).astype(np.float32)


F16 = ElementType("f16", "f2", 16, _pack_f16)
F32 = ElementType("f32", "f4", 32, _pack_f32)
Q8_0 = ElementType("q8_0", "i1", 8, _pack_q8_0, group=32)
Q4_0 = ElementType("q4_0", "u1", 4, _pack_q4_0, 32, _unpack_q4_0)
KV_TYPES: dict[str, KVType] = {
    kv_type.name: kv_type
    for kv_type in (
        KVType(F16, F16),
        KVType(F32, F32),
        KVType(Q8_0, Q8_0),
        KVType(Q4_0, Q4_0),
        KVType(F16, Q8_0),
        KVType(F16, Q4_0),
        KVType(Q8_0, Q4_0),
    )
}
"""KV types by name. If the formats differ, keys have the more exact one, since their errors matter
more."""
