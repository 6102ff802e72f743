"""The KV cache: where every position of every head lies, for each type it can be kept in.

Allocated once for the chosen context. A position is valid below the session's length and does not exist above it, so
taking back tokens is setting a number. Knows no architecture; the layouts are explained in ``kernels/kv_*.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import residency
from engine.errors import MemoryPlanError
from engine.memory import Memory

if TYPE_CHECKING:
    from engine.config import ModelConfig


@dataclass(frozen=True)
class KVType:
    """One way to keep keys and values.

    Attributes:
        name: what the user writes, and the suffix of the module in ``engine.kernels``.
        item_bytes: of one element.
        group: elements that share a float32 scale; 0 where there are no scales.
    """

    name: str
    item_bytes: int
    group: int

    def bytes_per_position(self, config: ModelConfig) -> int:
        """Bytes that one token takes in all layers, keys and values together."""
        scales = 4 * (config.head_dim // self.group) if self.group else 0
        return 2 * config.n_layers * config.n_kv_heads * (config.head_dim * self.item_bytes + scales)


KV_TYPES: dict[str, KVType] = {
    "f16": KVType("f16", 2, 0),
    "f32": KVType("f32", 4, 0),
    "q8_0": KVType("q8_0", 1, 32),
}
_GLANCE_PAGES = 16 << 10
POSITIONS = 8
"""K is kept in tiles of eight positions, so the context is a multiple of eight."""
LAYOUT_VERSION = 1
"""Of what lies where, and what it means: counted up with every change, so that no saved state is read as another."""


def kv_type_of(name: str, config: ModelConfig) -> KVType:
    """Look a type up by name.

    Raises:
        MemoryPlanError: unknown, or the model's heads do not divide into the type's groups.
    """
    kv_type = KV_TYPES.get(name)
    if kv_type is None:
        raise MemoryPlanError(f"KV cache type '{name}' is unknown; supported: {', '.join(KV_TYPES)}")
    if kv_type.group and config.head_dim % kv_type.group:
        raise MemoryPlanError(
            f"KV cache type '{name}' needs heads of a multiple of {kv_type.group} elements; "
            f"this model's have {config.head_dim} (use f16)"
        )
    return kv_type


Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class KVCache:
    """Keys and values of all layers.

    Args:
        max_seq_len: positions to hold, rounded up to a multiple of eight.

    Attributes:
        head_bytes, scale_bytes: from one KV head of a layer to the next, elements and scales.
        tile_bytes: of eight positions, all layers, keys and values, scales included.
    """

    def __init__(self, config: ModelConfig, kv_type: KVType, max_seq_len: int) -> None:
        self.kv_type = kv_type
        self.max_seq_len = _whole(max_seq_len)
        self._n_kv_heads = config.n_kv_heads
        self.head_bytes = self.max_seq_len * config.head_dim * kv_type.item_bytes
        self.scale_bytes = 4 * self.max_seq_len * (config.head_dim // kv_type.group) if kv_type.group else 0
        self.n_bytes = 2 * config.n_layers * config.n_kv_heads * (self.head_bytes + self.scale_bytes)
        self.tile_bytes = POSITIONS * kv_type.bytes_per_position(config)
        self._memory = Memory(self.n_bytes, fills_slowly=True)
        self.elements = self._heads(self.head_bytes, 0, config.n_layers)
        self.scales = self._heads(self.scale_bytes, 2 * config.n_kv_heads * self.head_bytes, config.n_layers)

    def _heads(self, each: int, offset: int, n_layers: int) -> Bytes:
        """View (n_layers, 2 * n_kv_heads, bytes of a head): a layer's heads of keys, then those of values."""
        layer_bytes = self.n_bytes // n_layers
        shape, strides = (n_layers, 2 * self._n_kv_heads, each), (layer_bytes, each, 1)
        return np.lib.stride_tricks.as_strided(self._memory.bytes[offset:], shape, strides)

    def resident_bytes(self) -> int | None:
        """Estimate how much of it lies in memory from a part of its pages; None where the system does not say."""
        return residency.resident_bytes(self._memory.bytes, _GLANCE_PAGES)

    def repeat(self, n: int, upto: int) -> None:
        """Copy the keys and values of the first n positions behind them, again and again up to a position.

        What is read there afterwards means nothing, but reading it takes the time that any context takes.

        Args:
            n, upto: multiples of eight, since K lies in tiles of so many positions.
        """
        for heads, each in self._parts():
            for at in range(n, upto, n):
                count = min(n, upto - at) * each
                heads[:, :, at * each : at * each + count] = heads[:, :, :count]

    def copy_out(self, first: int, last: int, out: Bytes) -> int:
        """Copy the tiles of positions from first up to last: elements by layer and head, then scales likewise.

        Releases the GIL; positions that a kernel writes meanwhile come as they happen to be.

        Args:
            first: a multiple of eight.
            out: (at least the bytes of those tiles,) uint8.

        Returns:
            Bytes written to ``out``.
        """
        at = 0
        for heads, each in self._parts():
            part = heads[:, :, first * each : _whole(last) * each]
            out[at : at + part.size].reshape(part.shape)[...] = part
            at += part.size
        return at

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Put back what ``copy_out`` of the same positions gave; those beyond the cache are left out."""
        at = 0
        for heads, each in self._parts():
            shape = (*heads.shape[:2], (_whole(last) - first) * each)
            size = int(np.prod(shape))
            room = heads[:, :, first * each : _whole(last) * each]
            room[...] = data[at : at + size].reshape(shape)[:, :, : room.shape[2]]
            at += size

    def _parts(self) -> list[tuple[Bytes, int]]:
        """Elements and scales of all heads, each with the bytes of one position of one head."""
        parts = [(self.elements, self.head_bytes // self.max_seq_len)]
        return [*parts, (self.scales, self.scale_bytes // self.max_seq_len)] if self.scale_bytes else parts

    def addresses(self, layer: int) -> tuple[int, int, int, int]:
        """Where a layer's keys, values, key scales and value scales begin."""
        elements, scales = self._n_kv_heads * self.head_bytes, self._n_kv_heads * self.scale_bytes
        start = self._memory.address + 2 * layer * (elements + scales)
        return start, start + elements, start + 2 * elements, start + 2 * elements + scales


def _whole(n: int) -> int:
    return (n + POSITIONS - 1) // POSITIONS * POSITIONS
