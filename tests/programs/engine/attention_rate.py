"""``python -m tests.programs.engine.attention_rate [KV...]``: attention of prompts and of decode,
one thread, by shape.

Prompts: GFLOP/s of 24 tokens at the end of a length, and their share of what multiply-adds alone
reach next to it. Decode: GB/s of keys and values from memory, and their share of what reading alone
reaches. The least processor time of many runs; both forms of a change are measured in turn, in a
process each, since other programs run meanwhile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from engine import simd as vec
from engine.ahead import address_of
from engine.cache.kv_types import KV_TYPES, KVType
from engine.jit import kernel
from engine.kernels.records import ATTENTION_CHUNK, CACHE, PARTIAL_HEADER, PROBE
from engine.machine.memory import Memory
from engine.plan.compilation import place_of
from tests.engine.attention_call import Layer, Shape
from tests.engine.kernel_call import KERNEL

TOKENS = 24
COLD_BYTES = 96 << 20
"""Bytes of keys and values that are read in turn: more than the last-level cache holds."""
LEAST_S = 0.4
LENGTHS = 1024, 4096, 8192, 16384
SHAPES = {
    "qwen2.5 0.5b": Shape(14, 2, 64), "qwen2.5 1.5b": Shape(12, 2, 128),
    "smollm2 135m": Shape(9, 3, 64),
    "gemma3 270m": Shape(4, 1, 256), "gemma3 270m window": Shape(4, 1, 256, 512),
    "phi 2.7b": Shape(32, 32, 80),
}  # fmt: skip


@kernel
def multiply_add(op, thread, n_threads):
    """Twelve sums that wait for nothing, as many times as the record says."""
    address = vec.load_i64(op)
    x = vec.load_lanes(address)
    a = x
    b = x
    c = x
    d = x
    e = x
    f = x
    g = x
    h = x
    i = x
    j = x
    k = x
    m = x
    y = vec.splat_like(x, 0.5)
    for _ in range(vec.load_i64(op + 8)):
        a = vec.fma(a, y, y)
        b = vec.fma(b, y, y)
        c = vec.fma(c, y, y)
        d = vec.fma(d, y, y)
        e = vec.fma(e, y, y)
        f = vec.fma(f, y, y)
        g = vec.fma(g, y, y)
        h = vec.fma(h, y, y)
        i = vec.fma(i, y, y)
        j = vec.fma(j, y, y)
        k = vec.fma(k, y, y)
        m = vec.fma(m, y, y)
    total = vec.fma(
        a, b, vec.fma(c, d, vec.fma(e, f, vec.fma(g, h, vec.fma(i, j, vec.fma(k, m, y)))))
    )
    vec.store_lanes(address, total)


def least_s(run: Callable[[], None]) -> float:
    """The least of the thread's processor time that a call takes: what other programs take does not
    count."""
    run()
    end = time.thread_time() + LEAST_S
    best = 1e9
    while time.thread_time() < end:
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
    return best


def peak_gflops() -> float:
    """Return the rate of multiply-adds alone."""
    room = np.ones(64, np.float32)
    record = np.array([room.ctypes.data, 100_000], np.int64)
    call = KERNEL(int(multiply_add.compiled.address))
    return float(
        2 * 12 * vec.LANES * record[1] / least_s(lambda: call(record.ctypes.data, 0, 1)) / 1e9
    )


def read_gbps(memory: Memory) -> float:
    """Return the rate of reading alone, in GB/s."""
    out = Memory(4096)
    call = KERNEL(address_of(place_of("probe")))
    rates = []
    for n_places in (1, 4):
        record = np.zeros(8, np.int64)
        for name, value in (
            ("address", memory.address),
            ("n_bytes", COLD_BYTES),
            ("out", out.address),
        ):
            record[getattr(PROBE, name) // 8] = value
        record[PROBE.n_streams // 8] = n_places
        rates.append(COLD_BYTES / least_s(lambda r=record: call(r.ctypes.data, 0, 1)) / 1e9)
    return max(rates)


class Bench:
    """The prompt's last tokens with one KV head, or a decode step with as many layers as do not
    stay in the cache."""

    def __init__(
        self, shape: Shape, kv: KVType, length: int, n_tokens: int, memory: Memory
    ) -> None:
        n_slots = 1024 if shape.window else length
        n_chunks = (length + ATTENTION_CHUNK - 1) // ATTENTION_CHUNK
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((n_tokens, shape.n_heads, shape.head_dim)).astype(np.float32)
        self.out = np.zeros(
            shape.n_heads * max(n_tokens, n_chunks) * (shape.head_dim + PARTIAL_HEADER), np.float32
        )
        layer_bytes = Layer(shape, kv, n_slots, memory).n_bytes
        n_layers = max(1, COLD_BYTES // layer_bytes) if n_tokens == 1 else 1
        self.layers = [Layer(shape, kv, n_slots, memory, n * layer_bytes) for n in range(n_layers)]
        self.records = [
            layer.record(n_tokens, length - n_tokens, self.x, self.out, 1) for layer in self.layers
        ]
        for record in self.records:
            record[CACHE.scratch // 8] = self.records[0][CACHE.scratch // 8]
            record[CACHE.end_kv_head // 8] = 1
        name = "attention parts" if n_tokens == 1 else "attention"
        self.call = KERNEL(address_of(place_of(f"{name} {kv.name}")))
        self.at = 0
        self.bytes_read = layer_bytes * min(shape.window or length, length) // n_slots
        pairs = sum(min(p + 1, shape.window or p + 1) for p in range(length - n_tokens, length))
        self.flops = 4 * shape.n_heads // shape.n_kv_heads * shape.head_dim * pairs

    def run(self) -> None:
        """The next layer."""
        self.at = (self.at + 1) % len(self.records)
        self.call(self.records[self.at].ctypes.data, 0, 1)


def main() -> None:
    """Print a line for each shape and length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kv", nargs="*", default=["f16"])
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument(
        "--lengths", type=lambda text: [int(n) for n in text.split(",")], default=LENGTHS
    )
    parser.add_argument("--only", choices=("prompt", "decode"))
    args = parser.parse_args()
    memory = Memory(COLD_BYTES + (64 << 20))
    halves = memory.bytes.view(np.float16)
    halves[:] = np.resize(
        np.random.default_rng(1).uniform(0.1, 1.0, 1 << 16).astype(np.float16), halves.shape
    )
    for kv in args.kv:
        for name in args.shape or SHAPES:
            for length in args.lengths:
                words = f"{kv:9} {name:19} {length:6}"
                if args.only != "decode":
                    peak = peak_gflops()
                    bench = Bench(SHAPES[name], KV_TYPES[kv], length, TOKENS, memory)
                    rate = bench.flops / least_s(bench.run) / 1e9
                    words += f"   prompt {rate:6.1f} of {peak:6.1f} GFLOP/s {rate / peak:4.0%}"
                if args.only != "prompt":
                    reading = read_gbps(memory)
                    bench = Bench(SHAPES[name], KV_TYPES[kv], length, 1, memory)
                    rate = bench.bytes_read / least_s(bench.run) / 1e9
                    words += f"   decode {rate:5.1f} of {reading:5.1f} GB/s {rate / reading:4.0%}"
                print(words, flush=True)


if __name__ == "__main__":
    main()
