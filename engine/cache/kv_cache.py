"""The KV cache: memory layout of every position of every head, for each KV type.

Allocated once for the chosen context. Positions below the session's length are valid, those above it are unused, so
dropping tokens only changes the length. Knows no architecture; the layouts are explained in ``kernels/kv_*.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cache import context_shift
from engine.cache.kv_types import KV_TYPES, KVType
from engine.cache.layer_memory import MemoryNeeds
from engine.errors import MemoryPlanError
from engine.machine import residency
from engine.machine.memory import Memory

if TYPE_CHECKING:
    from engine.cache.rotation import Rotation
    from engine.config import Attention, ModelConfig, Rope

_GLANCE_PAGES = 16 << 10
POSITIONS = 8
"""Positions in a tile of K; the context is rounded up to a multiple of it."""
LAYOUT_VERSION = 1
"""Version of the memory layout and its meaning; incremented with every change, checked when a state is restored."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


def kv_type_of(name: str, config: ModelConfig) -> KVType:
    """Return the KV type of a name, checked against the model's heads.

    Raises:
        MemoryPlanError: the name is unknown, or a head's width is not a multiple of the type's group.
    """
    kv_type = KV_TYPES.get(name)
    if kv_type is None:
        raise MemoryPlanError(f"KV cache type '{name}' is unknown; supported: {', '.join(KV_TYPES)}")
    for width in (width for one in config.attentions.values() for width in (one.key_dim, one.value_dim)):
        if kv_type.group and width % kv_type.group:
            raise MemoryPlanError(
                f"KV cache type '{name}' needs heads of a multiple of {kv_type.group} elements; "
                f"this model's have {width} (use f16)"
            )
    return kv_type


def memory_needs(config: ModelConfig, kv_type: KVType) -> MemoryNeeds:
    """Return the memory that all layers of a model need for their keys and values.

    Args:
        config: the model's hyperparameters.
        kv_type: a value of ``KV_TYPES``.
    """
    return MemoryNeeds(sum(_position_bytes(one, kv_type) for one in config.attentions.values()))


def _position_bytes(attention: Attention, kv_type: KVType) -> int:
    return attention.n_kv_heads * (kv_type.bytes_of(attention.key_dim) + kv_type.bytes_of(attention.value_dim))


class Heads:
    """Keys or values of one layer: elements, and scales where the type has them, one KV head behind the other.

    Args:
        memory: the region that holds the layer.
        at: offsets in it of the elements and of the scales, in bytes.
    """

    def __init__(
        self, kv_type: KVType, n_heads: int, width: int, max_seq_len: int, memory: Memory, at: tuple[int, int]
    ) -> None:
        self._type, self._n_heads, self.width = kv_type, n_heads, width
        self.max_seq_len = max_seq_len
        self.head_bytes = max_seq_len * width * kv_type.item_bytes
        self.scale_bytes = 4 * max_seq_len * kv_type.n_scales(width)
        self.address, self.scales_address = memory.address + at[0], memory.address + at[1]
        self.elements = memory.array(np.uint8, (n_heads, self.head_bytes), at[0])
        self.scales = memory.array(np.uint8, (n_heads, self.scale_bytes), at[1])

    def move(self, to: int, first: int, last: int) -> None:
        """Move the rows of positions first to last down to ``to``; for values, which are stored in rows."""
        for rows, each in ((self.elements, self.head_bytes), (self.scales, self.scale_bytes)):
            each //= self.max_seq_len
            rows[:, to * each : (to + last - first) * each] = rows[:, first * each : last * each].copy()

    def read_tiles(self, first: int, last: int) -> Floats:
        """Keys of some positions: (n_heads, last - first, width) float32."""
        from_tile, upto_tile = first // POSITIONS, -(-last // POSITIONS)
        elements, scales = (_rows(tiles[:, from_tile:upto_tile]) for tiles in self._tiles())
        found = self._type.unpack(elements, scales if self.scale_bytes else None)
        part: Floats = found[:, first - from_tile * POSITIONS : last - from_tile * POSITIONS].copy()
        return part

    def write_tiles(self, first: int, keys: Floats) -> None:
        """Write keys at positions from ``first`` on, as the kernels do."""
        position = np.arange(first, first + keys.shape[1])
        for tiles, rows in zip(self._tiles(), self._type.pack(keys), strict=True):
            if rows is not None:
                tiles[:, position // POSITIONS, :, position % POSITIONS] = rows.swapaxes(0, 1)

    def _tiles(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Elements as (n_heads, n_tiles, width, 8), scales as (n_heads, n_tiles, n_scales, 8)."""
        n_tiles = self.max_seq_len // POSITIONS
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
        rotation: how keys are turned by their positions; None where they are not.
        key_weight: (key_dim,) float32 that keys were multiplied by after they were turned; None for nothing.
    """

    def __init__(
        self,
        attention: Attention,
        rotation: Rotation | None,
        kv_type: KVType,
        max_seq_len: int,
        memory: Memory,
        at: int,
        key_weight: Floats | None = None,
    ) -> None:
        self.rotation, self.key_weight = rotation, key_weight
        n_heads = attention.n_kv_heads
        widths = attention.key_dim, attention.value_dim
        elements = [n_heads * max_seq_len * width * kv_type.item_bytes for width in widths]
        scales = [n_heads * max_seq_len * 4 * kv_type.n_scales(width) for width in widths]
        starts = np.cumsum([at, *elements, *scales]).tolist()
        self.keys = Heads(kv_type, n_heads, widths[0], max_seq_len, memory, (starts[0], starts[2]))
        self.values = Heads(kv_type, n_heads, widths[1], max_seq_len, memory, (starts[1], starts[3]))

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


class KVCache:
    """Keys and values of all layers that attend; a ``LayerMemory``.

    Args:
        max_seq_len: positions to hold, rounded up to a multiple of eight.
        rotations: of the ropes of the layers, for shifts.
        key_weights: number of a layer -> see ``LayerCache``.

    Attributes:
        layers: by the layer's number.
        n_bytes: of all of them.
    """

    can_shift = True

    def __init__(
        self,
        config: ModelConfig,
        kv_type: KVType,
        max_seq_len: int,
        rotations: Mapping[Rope, Rotation],
        key_weights: Mapping[int, Floats] | None = None,
    ) -> None:
        self.kv_type = kv_type
        self.max_seq_len = _whole(max_seq_len)
        self._needs = memory_needs(config, kv_type)
        self.n_bytes = self._needs.bytes_for(self.max_seq_len)
        self._memory = Memory(self.n_bytes, fills_slowly=True)
        self.layers: dict[int, LayerCache] = {}
        at = 0
        for number, attention in config.attentions.items():
            rotation = None if attention.rope is None else rotations[attention.rope]
            weight = (key_weights or {}).get(number)
            self.layers[number] = LayerCache(attention, rotation, kv_type, self.max_seq_len, self._memory, at, weight)
            at += self.max_seq_len * _position_bytes(attention, kv_type)

    def reach(self, n: int) -> None:
        """Do nothing: written positions stay valid."""

    def keep(self, n: int) -> None:
        """Do nothing: ``rewind`` can reach every position."""

    def rewind(self, n: int) -> int:
        """Return n: every position can be reached, at no cost."""
        return n

    def shift(self, n_keep: int, n_drop: int, length: int) -> None:
        """Move the positions behind the dropped ones down; keys are rotated by each layer's own rotation."""
        for layer in self.layers.values():
            context_shift.drop_positions(layer, n_keep, n_drop, length)

    def resident_bytes(self) -> int | None:
        """Estimate the bytes in memory from a sample of pages; None if the system does not tell."""
        return residency.resident_bytes(self._memory.bytes, _GLANCE_PAGES)

    def repeat(self, n: int, upto: int) -> None:
        """Copy the keys and values of the first n positions behind them, again and again up to a position.

        The copies have no meaning, but reading them takes as long as reading a real context.

        Args:
            n, upto: multiples of eight, since K lies in tiles of eight positions.
        """
        for heads, each in self._parts():
            for at in range(n, upto, n):
                count = min(n, upto - at) * each
                heads[:, at * each : at * each + count] = heads[:, :count]

    def copied_bytes(self, first: int, last: int) -> int:
        """Bytes of the tiles that hold these positions."""
        return (_whole(last) - first) * self._needs.position_bytes

    def copy_out(self, first: int, last: int, out: Bytes) -> int:
        """Copy the tiles of positions from first up to last: elements by layer and head, then scales likewise.

        Releases the GIL; positions that a kernel writes meanwhile have undefined content.

        Args:
            first: a multiple of eight.
            out: (at least the bytes of those tiles,) uint8.

        Returns:
            Bytes written to ``out``.
        """
        at = 0
        for heads, each in self._parts():
            part = heads[:, first * each : _whole(last) * each]
            out[at : at + part.size].reshape(part.shape)[...] = part
            at += part.size
        return at

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out`` for the same positions; positions beyond the cache are skipped."""
        at = 0
        for heads, each in self._parts():
            shape = (len(heads), (_whole(last) - first) * each)
            size = int(np.prod(shape))
            room = heads[:, first * each : _whole(last) * each]
            room[...] = data[at : at + size].reshape(shape)[:, : room.shape[1]]
            at += size

    def _parts(self) -> Iterator[tuple[Bytes, int]]:
        """All heads in the order in which states keep them, each with the bytes of one position of one head.

        First the elements of every layer, its keys before its values, then the scales likewise.
        """
        for heads in self._heads():
            yield heads.elements, heads.head_bytes // self.max_seq_len
        for heads in self._heads():
            if heads.scale_bytes:
                yield heads.scales, heads.scale_bytes // self.max_seq_len

    def _heads(self) -> Iterator[Heads]:
        for layer in self.layers.values():
            yield layer.keys
            yield layer.values


def _whole(n: int) -> int:
    return (n + POSITIONS - 1) // POSITIONS * POSITIONS
