"""Keys and values of one layer: memory layout of every position of every head, for each KV type.

A layer holds all positions of the context or, where it sees only a window, a ring of them: position
p is in slot ``p % slots``. Knows no architecture; the layouts are explained in ``kernels/kv_*.py``.
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
"""Positions in a tile of K; contexts and rings are multiples of it."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


class Heads:
    """Keys or values of one layer: elements, and scales where the type has them, one KV head after
    the other.

    Args:
        n_slots: positions that are held; position p is in slot ``p % n_slots``.
        memory: the region that holds the layer.
        at: offsets in it of the elements and of the scales, in bytes.
    """

    def __init__(
        self,
        element_type: ElementType,
        n_heads: int,
        width: int,
        n_slots: int,
        memory: Memory,
        at: tuple[int, int],
    ) -> None:
        self._type = element_type
        self._n_heads = n_heads
        self.width = width
        self.n_slots = n_slots
        self.head_bytes = n_slots * element_type.elements_bytes(width)
        self.scale_bytes = 4 * n_slots * element_type.n_scales(width)
        self.scales_address = memory.address + at[1]
        self.address = memory.address + at[0]
        self.elements = memory.array(np.uint8, (n_heads, self.head_bytes), at[0])
        self.scales = memory.array(np.uint8, (n_heads, self.scale_bytes), at[1])

    def move(self, to: int, first: int, last: int) -> None:
        """Move the rows of positions first to last down to ``to``; for values, which are stored in
        rows."""
        old = np.arange(first, last) % self.n_slots
        new = np.arange(to, to + last - first) % self.n_slots
        for part in (self.elements, self.scales):
            rows = part.reshape(self._n_heads, self.n_slots, -1)
            rows[:, new] = rows[:, old]

    def read_tiles(self, first: int, last: int) -> Floats:
        """Keys of some positions: (n_heads, last - first, width) float32."""
        from_tile = first // POSITIONS
        upto_tile = -(-last // POSITIONS)
        tile = np.arange(from_tile, upto_tile) % (self.n_slots // POSITIONS)
        items, scales = (_rows(tiles[:, tile]) for tiles in self._tiles())
        found = self._type.unpack(items, scales if self.scale_bytes else None)
        part: Floats = found[:, first - from_tile * POSITIONS : last - from_tile * POSITIONS].copy()
        return part

    def write_tiles(self, first: int, keys: Floats) -> None:
        """Write keys at positions from ``first`` on, as the kernels do."""
        slot = np.arange(first, first + keys.shape[1]) % self.n_slots
        for tiles, rows in zip(self._tiles(), self._type.pack(keys), strict=True):
            if rows is not None:
                tiles[:, slot // POSITIONS, :, slot % POSITIONS] = rows.swapaxes(0, 1)

    def _tiles(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Items as (n_heads, n_tiles, n_items, 8), scales as (n_heads, n_tiles, n_scales, 8)."""
        shape = (self._n_heads, self.n_slots // POSITIONS)
        n_scales = self._type.n_scales(self.width)
        items = self.elements.view(self._type.dtype)
        scales = self.scales.view(np.float32)
        return items.reshape(*shape, -1, POSITIONS), scales.reshape(*shape, n_scales, POSITIONS)


def _rows(tiles: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(n_heads, n_tiles, width, 8) as (n_heads, positions, width)."""
    n_heads, n_tiles, width, positions = tiles.shape
    rows: np.ndarray[Any, Any] = tiles.swapaxes(2, 3).reshape(n_heads, n_tiles * positions, width)
    return rows


class LayerCache:
    """Keys and values of one layer, in the memory of the whole cache from ``at`` on.

    Attributes:
        window: positions that a query of the layer sees; None for all.
        n_slots: positions that are held.
        rotation: how keys are turned by their positions; None where they are not.
        has_hadamard: whether keys are multiplied by a Hadamard matrix at last, and values are.
        key_weight: (key_dim,) float32 that keys were multiplied by after they were turned; None for
            nothing.
    """

    def __init__(
        self,
        attention: Attention,
        rotation: Rotation | None,
        kv_type: KVType,
        n_slots: int,
        memory: Memory,
        at: int,
        key_weight: Floats | None = None,
    ) -> None:
        self.window = attention.kept_window
        self.n_slots = n_slots
        self.rotation = rotation
        self.key_weight = key_weight
        self.has_hadamard = kv_type.has_hadamard
        n_heads = attention.n_kv_heads
        types = (kv_type.keys, attention.key_dim), (kv_type.values, attention.value_dim)
        elements = [n_heads * n_slots * one.elements_bytes(width) for one, width in types]
        scales = [n_heads * n_slots * 4 * one.n_scales(width) for one, width in types]
        starts = np.cumsum([at, *elements, *scales]).tolist()
        self.keys, self.values = (
            Heads(one, n_heads, width, n_slots, memory, (starts[number], starts[2 + number]))
            for number, (one, width) in enumerate(types)
        )

    def turn(self, keys: Floats, positions: int) -> None:
        """Turn (n_heads, n, key_dim) keys by a number of positions, in place."""
        if self.rotation is None:
            return
        weight = 1.0 if self.key_weight is None else self.key_weight
        if self.has_hadamard:
            keys[...] = hadamard.multiplied(keys)
        keys /= np.where(weight == 0, 1, weight)
        self.rotation.turn(keys, positions)
        keys *= weight
        if self.has_hadamard:
            keys[...] = hadamard.multiplied(keys)


@dataclass(frozen=True, eq=False)
class CachePart:
    """Elements or scales of one layer's keys or values.

    Attributes:
        rows: (n_heads, n_slots * each) uint8.
        each: bytes of one position of one head.
        n_slots: positions that are held.
    """

    rows: Bytes
    each: int
    n_slots: int

    def copied_bytes(self, n: int) -> int:
        """Return the bytes of n positions of all heads."""
        return len(self.rows) * n * self.each

    def copy_out(self, first: int, last: int, out: Bytes) -> None:
        """Copy positions first to last, at most ``n_slots``, into (n_heads, (last - first) *
        each)."""
        for slot, at, n in self._spans(first, last):
            out[:, at * self.each : (at + n) * self.each] = self.rows[
                :, slot * self.each : (slot + n) * self.each
            ]

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out``; data may go on after ``last``."""
        for slot, at, n in self._spans(first, last):
            self.rows[:, slot * self.each : (slot + n) * self.each] = data[
                :, at * self.each : (at + n) * self.each
            ]

    def repeat(self, n: int, upto: int) -> None:
        """Copy the first n positions after them, again and again up to a position or the last
        slot."""
        upto = min(upto, self.n_slots)
        for at in range(n, upto, n):
            count = min(n, upto - at) * self.each
            self.rows[:, at * self.each : at * self.each + count] = self.rows[:, :count]

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first slot, offset from ``first``, positions) of each unbroken run of slots."""
        at = first
        while at < last:
            slot = at % self.n_slots
            n = min(last - at, self.n_slots - slot)
            yield slot, at - first, n
            at += n


def parts_of(layers: Sequence[LayerCache]) -> list[CachePart]:
    """Return the parts in the order in which states keep them: all elements, keys before values,
    then all scales."""
    heads = [one for layer in layers for one in (layer.keys, layer.values)]
    elements = [
        CachePart(one.elements, one.head_bytes // one.n_slots, one.n_slots) for one in heads
    ]
    scales = [
        CachePart(one.scales, one.scale_bytes // one.n_slots, one.n_slots)
        for one in heads
        if one.scale_bytes
    ]
    return elements + scales
