"""The KV cache: where every position of every head lies, for each type it can be kept in.

Allocated once for the chosen context. A position is valid below the session's length and does not exist above it, so
taking back tokens is setting a number. Knows no architecture; the layouts are explained in ``kernels/kv_*.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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


class KVCache:
    """Keys and values of all layers.

    Args:
        max_seq_len: positions to hold, rounded up to a multiple of eight.

    Attributes:
        head_bytes, scale_bytes: from one KV head of a layer to the next, elements and scales.
    """

    def __init__(self, config: ModelConfig, kv_type: KVType, max_seq_len: int) -> None:
        self.kv_type = kv_type
        self.max_seq_len = (max_seq_len + POSITIONS - 1) // POSITIONS * POSITIONS
        self._n_kv_heads = config.n_kv_heads
        self.head_bytes = self.max_seq_len * config.head_dim * kv_type.item_bytes
        self.scale_bytes = 4 * self.max_seq_len * (config.head_dim // kv_type.group) if kv_type.group else 0
        self.n_bytes = 2 * config.n_layers * config.n_kv_heads * (self.head_bytes + self.scale_bytes)
        self._memory = Memory(self.n_bytes, fills_slowly=True)

    def resident_bytes(self) -> int | None:
        """Estimate how much of it lies in memory from a part of its pages; None where the system does not say."""
        return residency.resident_bytes(self._memory.bytes, _GLANCE_PAGES)

    def repeat(self, n: int, upto: int) -> None:
        """Copy the keys and values of the first n positions behind them, again and again up to a position.

        What is read there afterwards means nothing, but reading it takes the time that any context takes.

        Args:
            n, upto: multiples of eight, since K lies in tiles of so many positions.
        """
        elements, scales = self._n_kv_heads * self.head_bytes, self._n_kv_heads * self.scale_bytes
        layers = self._memory.bytes[: self.n_bytes].reshape(-1, 2 * (elements + scales))
        for first, n_bytes in ((0, self.head_bytes), (2 * elements, self.scale_bytes)):
            each = n_bytes // self.max_seq_len
            for layer in layers if each else ():
                heads = layer[first : first + 2 * self._n_kv_heads * n_bytes].reshape(-1, n_bytes)
                for at in range(n, upto, n):
                    count = min(n, upto - at) * each
                    heads[:, at * each : at * each + count] = heads[:, :count]

    def addresses(self, layer: int) -> tuple[int, int, int, int]:
        """Where a layer's keys, values, key scales and value scales begin."""
        elements, scales = self._n_kv_heads * self.head_bytes, self._n_kv_heads * self.scale_bytes
        start = self._memory.address + 2 * layer * (elements + scales)
        return start, start + elements, start + 2 * elements, start + 2 * elements + scales
