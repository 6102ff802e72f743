"""Keys and values of one layer: memory layout of every position of every head, for each KV type.

A layer holds all positions of the context or, where it sees only a window, a ring of them: position p lies in slot
``p % slots``. Knows no architecture; the layouts are explained in ``kernels/kv_*.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from engine.cache.kv_types import KVType
    from engine.cache.rotation import Rotation
    from engine.config import Attention
    from engine.machine.memory import Memory

POSITIONS = 8
"""Positions in a tile of K; contexts and rings are multiples of it."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


class Heads:
    """Keys or values of one layer: elements, and scales where the type has them, one KV head behind the other.

    Args:
        n_slots: positions that are held; position p lies in slot ``p % n_slots``.
        memory: the region that holds the layer.
        at: offsets in it of the elements and of the scales, in bytes.
    """

    def __init__(
        self, kv_type: KVType, n_heads: int, width: int, n_slots: int, memory: Memory, at: tuple[int, int]
    ) -> None:
        self._type, self._n_heads, self.width = kv_type, n_heads, width
        self.n_slots = n_slots
        self.head_bytes = n_slots * width * kv_type.item_bytes
        self.scale_bytes = 4 * n_slots * kv_type.n_scales(width)
        self.address, self.scales_address = memory.address + at[0], memory.address + at[1]
        self.elements = memory.array(np.uint8, (n_heads, self.head_bytes), at[0])
        self.scales = memory.array(np.uint8, (n_heads, self.scale_bytes), at[1])

    def move(self, to: int, first: int, last: int) -> None:
        """Move the rows of positions first to last down to ``to``; for values, which are stored in rows."""
        old = np.arange(first, last) % self.n_slots
        new = np.arange(to, to + last - first) % self.n_slots
        for part in (self.elements, self.scales):
            rows = part.reshape(self._n_heads, self.n_slots, -1)
            rows[:, new] = rows[:, old]

    def read_tiles(self, first: int, last: int) -> Floats:
        """Keys of some positions: (n_heads, last - first, width) float32."""
        from_tile, upto_tile = first // POSITIONS, -(-last // POSITIONS)
        tile = np.arange(from_tile, upto_tile) % (self.n_slots // POSITIONS)
        elements, scales = (_rows(tiles[:, tile]) for tiles in self._tiles())
        found = self._type.unpack(elements, scales if self.scale_bytes else None)
        part: Floats = found[:, first - from_tile * POSITIONS : last - from_tile * POSITIONS].copy()
        return part

    def write_tiles(self, first: int, keys: Floats) -> None:
        """Write keys at positions from ``first`` on, as the kernels do."""
        slot = np.arange(first, first + keys.shape[1]) % self.n_slots
        for tiles, rows in zip(self._tiles(), self._type.pack(keys), strict=True):
            if rows is not None:
                tiles[:, slot // POSITIONS, :, slot % POSITIONS] = rows.swapaxes(0, 1)

    def _tiles(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Elements as (n_heads, n_tiles, width, 8), scales as (n_heads, n_tiles, n_scales, 8)."""
        n_tiles = self.n_slots // POSITIONS
        shape = self._n_heads, n_tiles, self.width, POSITIONS
        return (
            self.elements.view(self._type.dtype).reshape(shape),
            self.scales.view(np.float32).reshape(*shape[:2], self._type.n_scales(self.width), POSITIONS),
        )


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
        key_weight: (key_dim,) float32 that keys were multiplied by after they were turned; None for nothing.
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
        self.window, self.n_slots = attention.window, n_slots
        self.rotation, self.key_weight = rotation, key_weight
        n_heads = attention.n_kv_heads
        widths = attention.key_dim, attention.value_dim
        elements = [n_heads * n_slots * width * kv_type.item_bytes for width in widths]
        scales = [n_heads * n_slots * 4 * kv_type.n_scales(width) for width in widths]
        starts = np.cumsum([at, *elements, *scales]).tolist()
        self.keys = Heads(kv_type, n_heads, widths[0], n_slots, memory, (starts[0], starts[2]))
        self.values = Heads(kv_type, n_heads, widths[1], n_slots, memory, (starts[1], starts[3]))

    def turn(self, keys: Floats, positions: int) -> None:
        """Turn (n_heads, n, key_dim) keys by a number of positions, in place."""
        if self.rotation is None:
            return
        if self.key_weight is None:
            self.rotation.turn(keys, positions)
            return
        keys /= np.where(self.key_weight == 0, 1, self.key_weight)
        self.rotation.turn(keys, positions)
        keys *= self.key_weight


@dataclass(frozen=True, eq=False)
class Part:
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
        """Copy positions first to last, at most ``n_slots``, into (n_heads, (last - first) * each)."""
        for slot, at, n in self._spans(first, last):
            out[:, at * self.each : (at + n) * self.each] = self.rows[:, slot * self.each : (slot + n) * self.each]

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out``; data may go on behind ``last``."""
        for slot, at, n in self._spans(first, last):
            self.rows[:, slot * self.each : (slot + n) * self.each] = data[:, at * self.each : (at + n) * self.each]

    def repeat(self, n: int, upto: int) -> None:
        """Copy the first n positions behind them, again and again up to a position or the last slot."""
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


def parts_of(layers: Sequence[LayerCache]) -> list[Part]:
    """Return the parts in the order in which states keep them: all elements, keys before values, then all scales."""
    heads = [one for layer in layers for one in (layer.keys, layer.values)]
    elements = [Part(one.elements, one.head_bytes // one.n_slots, one.n_slots) for one in heads]
    scales = [Part(one.scales, one.scale_bytes // one.n_slots, one.n_slots) for one in heads if one.scale_bytes]
    return elements + scales
