"""The types keys and values can be kept in: one entry each, numbers and the arithmetic in NumPy.

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
    """One way to keep keys and values.

    Attributes:
        name: what the user writes, and the suffix of the module in ``engine.kernels``.
        dtype: NumPy's, of one element.
        item_bytes: of one element.
        pack: (..., n) float32 -> elements (..., n) and scales (..., n / group) or None, as the kernels write them.
        group: elements that share a float32 scale; 0 where there are no scales.
    """

    name: str
    dtype: str
    item_bytes: int
    pack: Callable[[Floats], tuple[Array, Array | None]]
    group: int = 0

    def n_scales(self, width: int) -> int:
        """Scales of a head of some width."""
        return width // self.group if self.group else 0

    def bytes_of(self, width: int) -> int:
        """Bytes that one position of a head of some width takes, scales included."""
        return width * self.item_bytes + 4 * self.n_scales(width)

    @property
    def bytes_per_element(self) -> float:
        """Bytes of one element with its share of a scale."""
        return self.item_bytes + (4 / self.group if self.group else 0)

    def unpack(self, elements: Array, scales: Array | None) -> Floats:
        """What ``pack`` gave, as float32."""
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
