"""The types of the KV cache: one entry each, with sizes and the conversion in NumPy.

The kernels of a type are in ``engine/kernels/kv_NAME.py``. Imports neither numba nor, before it is needed, NumPy.
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
class KVType:
    """One storage type of keys and values.

    Attributes:
        name: in settings, and suffix of the module in ``engine.kernels``.
        dtype: NumPy type of one element.
        item_bytes: bytes of one element.
        pack: (..., n) float32 -> elements (..., n) and scales (..., n / group) or None, as the kernels write them.
        group: number of elements that share a float32 scale; 0 for types without scales.
    """

    name: str
    dtype: str
    item_bytes: int
    pack: Callable[[Floats], tuple[Array, Array | None]]
    group: int = 0

    def n_scales(self, width: int) -> int:
        """Number of scales of one position of a head of ``width`` elements."""
        return width // self.group if self.group else 0

    def bytes_of(self, width: int) -> int:
        """Bytes of one position of a head of ``width`` elements, scales included."""
        return width * self.item_bytes + 4 * self.n_scales(width)

    @property
    def bytes_per_element(self) -> float:
        """Bytes per element, its share of a scale included."""
        return self.item_bytes + (4 / self.group if self.group else 0)

    def unpack(self, elements: Array, scales: Array | None) -> Floats:
        """Convert the result of ``pack`` back to float32, same shape as ``elements``."""
        floats: Floats = elements.astype("f4")
        if scales is not None:
            floats *= scales.repeat(self.group, axis=-1)
        return floats


def _pack_f16(x: Floats) -> tuple[Array, None]:
    return x.astype("f2"), None


def _pack_f32(x: Floats) -> tuple[Array, None]:
    return x.astype("f4"), None


def _pack_q8_0(x: Floats) -> tuple[Array, Array]:
    import numpy as np

    groups = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    top = np.abs(groups).max(-1)
    inverse = np.divide(127.0, top, out=np.zeros_like(top), where=top > 0)
    elements = np.rint(groups * inverse[..., None]).astype(np.int8).reshape(x.shape)
    return elements, (top / np.float32(127)).astype(np.float16).astype(np.float32)


KV_TYPES: dict[str, KVType] = {
    "f16": KVType("f16", "f2", 2, _pack_f16),
    "f32": KVType("f32", "f4", 4, _pack_f32),
    "q8_0": KVType("q8_0", "i1", 1, _pack_q8_0, group=32),
}
