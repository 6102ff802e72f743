"""Keys and values of one layer: their memory layout for each KV type.

A layer stores all positions of the context. A sliding layer stores a ring of them: position p is in
slot ``p % n_slots``. ``kernels/kv_*.py`` explains the layouts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.cache import hadamard
from engine.cache.kv_types import ElementType, KVType
from engine.cache.rotation import Rotation
from engine.config import Attention
from engine.machine.memory import Memory

POSITIONS = 8
"""Number of positions in a tile of keys; sizes of contexts and rings are multiples of it."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


class Heads:
    """Keys or values of one layer: elements, and scales if the type has them, by KV head.

    Args:
        head_dim: number of elements of a head.
        n_slots: number of positions; position p is in slot ``p % n_slots``.
        memory: memory of the cache.
        offsets: offsets of the elements and of the scales in it, in bytes.
    """

    def __init__(
        self,
        element_type: ElementType,
        n_heads: int,
        width: int,
        n_slots: int,
        memory: Memory,
        offsets: tuple[int, int],
    ) -> None:
        self._type = element_type
        self._n_heads = n_heads
        self.width = width
        self.n_slots = n_slots
        self.head_bytes = n_slots * element_type.elements_bytes(width)
        self.scale_bytes = 4 * n_slots * element_type.n_scales(width)
        elements_offset, scales_offset = offsets
        self.address = memory.address + elements_offset
        self.scales_address = memory.address + scales_offset
        self.elements = memory.array(np.uint8, (n_heads, self.head_bytes), elements_offset)
        self.scales = memory.array(np.uint8, (n_heads, self.scale_bytes), scales_offset)

    def move(self, to: int, first: int, last: int) -> None:
        """Move the rows of positions first to last to ``to``. Only values are stored in rows."""
        self.write_rows(to, self.read_rows(first, last))

    def read_rows(self, first: int, last: int) -> list[Bytes]:
        """Return copies of the elements and the scales of positions first to last."""
        slots = np.arange(first, last) % self.n_slots
        return [rows[:, slots] for rows in self._rows()]

    def write_rows(self, first: int, copies: Sequence[Bytes]) -> None:
        """Write the result of ``read_rows`` at positions from ``first`` on."""
        for rows, copy in zip(self._rows(), copies, strict=True):
            slots = np.arange(first, first + copy.shape[1]) % self.n_slots
            rows[:, slots] = copy

    def _rows(self) -> list[Bytes]:
        """Return the elements and the scales as (n_heads, n_slots, bytes of a position)."""
        arrays = (self.elements, self.scales)
        return [array.reshape(self._n_heads, self.n_slots, -1) for array in arrays]

    def read_tiles(self, first: int, last: int) -> Floats:
        """Return the keys of positions first to last, (n_heads, last - first, width) float32."""
        first_tile = first // POSITIONS
        end_tile = -(-last // POSITIONS)
        numbers = np.arange(first_tile, end_tile) % (self.n_slots // POSITIONS)
        items, scales = (_rows(tiles[:, numbers]) for tiles in self._tiles())
        keys = self._type.unpack(items, scales if self.scale_bytes else None)
        start = first_tile * POSITIONS
        selected: Floats = keys[:, first - start : last - start].copy()
        return selected

    def write_tiles(self, first: int, keys: Floats) -> None:
        """Write keys at positions from ``first`` on, as the kernels do."""
        slots = np.arange(first, first + keys.shape[1]) % self.n_slots
        for tiles, rows in zip(self._tiles(), self._type.pack(keys), strict=True):
            if rows is not None:
                tiles[:, slots // POSITIONS, :, slots % POSITIONS] = rows.swapaxes(0, 1)

    def _tiles(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the items as (n_heads, n_tiles, n_items, 8) and the scales as (n_heads, n_tiles,
        n_scales, 8)."""
        shape = (self._n_heads, self.n_slots // POSITIONS)
        n_scales = self._type.n_scales(self.width)
        items = self.elements.view(self._type.dtype)
        scales = self.scales.view(np.float32)
        return items.reshape(*shape, -1, POSITIONS), scales.reshape(*shape, n_scales, POSITIONS)


def _rows(tiles: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return (n_heads, n_tiles, width, 8) as (n_heads, positions, width)."""
    n_heads, n_tiles, width, positions = tiles.shape
    rows: np.ndarray[Any, Any] = tiles.swapaxes(2, 3).reshape(n_heads, n_tiles * positions, width)
    return rows


class LayerCache:
    """Keys and values of one layer.

    Args:
        memory: memory of the cache.
        offset: offset of the layer in it, in bytes.

    Attributes:
        window: number of positions that a query of the layer sees; None for all.
        n_slots: number of positions that are stored.
        rotation: rotation of the keys by position; None if the layer has no rope.
        has_hadamard: whether keys and values are multiplied by a Hadamard matrix.
        key_weight: (key_dim,) float32 that keys were multiplied by after their rotation; None if
            they were not.
    """

    def __init__(
        self,
        attention: Attention,
        rotation: Rotation | None,
        kv_type: KVType,
        n_slots: int,
        memory: Memory,
        offset: int,
        key_weight: Floats | None = None,
    ) -> None:
        self.window = attention.cache_window
        self.n_slots = n_slots
        self.rotation = rotation
        self.key_weight = key_weight
        self.has_hadamard = kv_type.has_hadamard
        n_heads = attention.n_kv_heads
        n_rows = n_heads * n_slots
        key_type = kv_type.keys
        value_type = kv_type.values
        key_dim = attention.key_dim
        value_dim = attention.value_dim
        key_offset = offset
        value_offset = key_offset + n_rows * key_type.elements_bytes(key_dim)
        key_scales = value_offset + n_rows * value_type.elements_bytes(value_dim)
        value_scales = key_scales + n_rows * 4 * key_type.n_scales(key_dim)
        self.keys = Heads(key_type, n_heads, key_dim, n_slots, memory, (key_offset, key_scales))
        self.values = Heads(
            value_type, n_heads, value_dim, n_slots, memory, (value_offset, value_scales)
        )

    def rotate(self, keys: Floats, positions: int) -> None:
        """Rotate (n_heads, n, key_dim) keys by a number of positions, in place."""
        if self.rotation is None:
            return
        weight: Floats | float = 1.0 if self.key_weight is None else self.key_weight
        if self.has_hadamard:
            keys[...] = hadamard.multiplied(keys)
        keys /= np.where(weight == 0, 1, weight)
        self.rotation.rotate(keys, positions)
        keys *= weight
        if self.has_hadamard:
            keys[...] = hadamard.multiplied(keys)


@dataclass(frozen=True, eq=False)
class CacheRegion:
    """Elements or scales of one layer's keys or values.

    Attributes:
        rows: (n_heads, n_slots * position_bytes) uint8.
        position_bytes: bytes of one position of one head.
        n_slots: number of positions that are stored.
    """

    rows: Bytes
    position_bytes: int
    n_slots: int

    def copied_bytes(self, n: int) -> int:
        """Return the bytes of n positions of all heads."""
        return len(self.rows) * n * self.position_bytes

    def copy_out(self, first: int, last: int, out: Bytes) -> None:
        """Copy positions first to last, at most ``n_slots``, into ``out``.

        Args:
            out: (n_heads, (last - first) * position_bytes) uint8.
        """
        for in_rows, in_copy in self._spans(first, last):
            out[:, in_copy] = self.rows[:, in_rows]

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out``; ``data`` may have more positions after ``last``."""
        for in_rows, in_copy in self._spans(first, last):
            self.rows[:, in_rows] = data[:, in_copy]

    def repeat(self, n: int, upto: int) -> None:
        """Fill the slots up to a position with copies of the first n positions."""
        upto = min(upto, self.n_slots)
        for position in range(n, upto, n):
            start = position * self.position_bytes
            n_bytes = min(n, upto - position) * self.position_bytes
            self.rows[:, start : start + n_bytes] = self.rows[:, :n_bytes]

    def _spans(self, first: int, last: int) -> Iterator[tuple[slice, slice]]:
        """Yield the bytes in a row, and in a copy, of each unbroken run of slots."""
        size = self.position_bytes
        position = first
        while position < last:
            slot = position % self.n_slots
            n = min(last - position, self.n_slots - slot)
            start = position - first
            yield slice(slot * size, (slot + n) * size), slice(start * size, (start + n) * size)
            position += n


def regions_of(layers: Sequence[LayerCache]) -> list[CacheRegion]:
    """Return the regions in the order of saved states: all elements, keys before values, then all
    scales."""
    elements = []
    scales = []
    for layer in layers:
        for heads in (layer.keys, layer.values):
            n = heads.n_slots
            elements.append(CacheRegion(heads.elements, heads.head_bytes // n, n))
            if heads.scale_bytes:
                scales.append(CacheRegion(heads.scales, heads.scale_bytes // n, n))
    return elements + scales
