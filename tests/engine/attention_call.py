"""Call the kernels of attention on NumPy arrays, in the way a plan would: by address, with a
record."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.cache.kv_types import ElementType, KVType
from engine.kernels.attention_sizes import scratch_bytes
from engine.kernels.records import ATTENTION_CHUNK, CACHE, PARTIAL_HEADER, STEP
from engine.machine.memory import Memory
from engine.plan.operation import float_bits
from tests.engine.kernel_call import run, words


class Shape(NamedTuple):
    """Heads of a layer; a window or cap of 0 is none."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int = 0
    soft_cap: float = 0.0


class Layer:
    """Keys and values of one layer, and calls of kernels on them.

    Args:
        n_slots: positions that the cache holds, a multiple of eight.
        sinks, slopes: (n_heads,) float32.
    """

    def __init__(
        self,
        shape: Shape,
        kv: KVType,
        n_slots: int,
        memory: Memory | None = None,
        address: int = 0,
        sinks: np.ndarray | None = None,
        slopes: np.ndarray | None = None,
    ) -> None:
        self.shape = shape
        self.kv = kv
        self.n_slots = n_slots
        types = (kv.keys, kv.values)
        width = shape.head_dim
        sizes = [
            shape.n_kv_heads * n_slots * element_type.elements_bytes(width)
            for element_type in types
        ]
        sizes += [
            shape.n_kv_heads * n_slots * 4 * element_type.n_scales(width) for element_type in types
        ]
        self.n_bytes = sum(sizes)
        self.memory = memory or Memory(self.n_bytes)
        self.starts = [address, *(address + np.cumsum(sizes)).tolist()]
        self.max_chunks = (n_slots + ATTENTION_CHUNK - 1) // ATTENTION_CHUNK
        self.sinks = sinks
        self.slopes = slopes

    def fill(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Write keys and values, each (n_kv_heads, n_slots, head_dim) float32, as the type's
        kernels would."""
        for number, (element_type, heads) in enumerate(
            ((self.kv.keys, keys), (self.kv.values, values))
        ):
            for index, packed in zip((number, 2 + number), element_type.pack(heads), strict=True):
                if packed is not None:
                    rows = (
                        packed.reshape(-1, 8, packed.shape[-1]).swapaxes(1, 2)
                        if number == 0
                        else packed
                    )
                    raw = np.ascontiguousarray(rows).view(np.uint8).ravel()
                    self.memory.bytes[self.starts[index] : self.starts[index] + raw.size] = raw

    def record(
        self, n_tokens: int, pos: int, x: np.ndarray, out: np.ndarray, n_threads: int
    ) -> np.ndarray:
        """Return the record of a call; the arrays it points into live until the next call."""
        scratch_size = scratch_bytes(self.shape.head_dim)
        shape = self.shape
        address = self.memory.address
        self._scratch = Memory(scratch_size * n_threads)
        return words(
            CACHE, step=words(STEP, n_tokens=n_tokens, start_pos=pos), x=x, out=out,
            n_heads=shape.n_heads,
            n_kv_heads=shape.n_kv_heads, head_dim=shape.head_dim, k_cache=address + self.starts[0],
            v_cache=address + self.starts[1], k_scales=address + self.starts[2],
            v_scales=address + self.starts[3],
            scratch=self._scratch.address, scratch_bytes=scratch_size, scale=float_bits(shape.head_dim**-0.5),
            soft_cap=float_bits(shape.soft_cap), max_chunks=self.max_chunks, end_kv_head=shape.n_kv_heads,
            window=shape.window, n_slots=self.n_slots,
            sinks=0 if self.sinks is None else self.sinks,
            slopes=0 if self.slopes is None else self.slopes,
        )  # fmt: skip

    def prompt(self, x: np.ndarray, pos: int, n_threads: int = 1) -> np.ndarray:
        """Return attention of (n, n_heads, head_dim) queries from a position on, in the same shape."""
        out = np.full_like(x, 12345.0)
        run(f"attention {self.kv.name}", self.record(len(x), pos, x, out, n_threads), n_threads)
        return out

    def decode(self, x: np.ndarray, pos: int, n_threads: int = 1) -> np.ndarray:
        """Return attention of one token: (n_heads, head_dim)."""
        partial_results = np.zeros(
            (len(x), self.max_chunks, PARTIAL_HEADER + self.shape.head_dim), np.float32
        )
        out = np.full_like(x, 12345.0)
        run(
            f"attention parts {self.kv.name}",
            self.record(1, pos, x, partial_results, n_threads),
            n_threads,
        )
        run("merge attention", self.record(1, pos, partial_results, out, n_threads), n_threads)
        return out


def as_kept(element_type: ElementType, heads: np.ndarray) -> np.ndarray:
    """Return heads as a type stores them, unpacked again."""
    return element_type.unpack(*element_type.pack(heads))
