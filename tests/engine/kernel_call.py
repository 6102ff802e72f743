"""Call the kernels of a quantised type on NumPy arrays, in the way a plan would: by address, with a
record."""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest

from engine.ahead import address_of
from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.kernels.records import COUNTER_BYTES, EMBED, MATMUL, STEP
from engine.kernels.tiles import INTERLEAVED_TOKENS, SCRATCH_BYTES, TILE_TOKENS
from engine.machine.residency import resident_bytes
from engine.plan.buffers import FORMS, in_pairs, in_rows, interleaved
from engine.plan.compilation import place_of
from engine.quants.base import ProductKernel, QuantType

PADDING_BYTES = 4096
"""Bytes after the weights: kernels may prefetch them, and must not need them."""

KERNEL: Callable[[int], Callable[[int, int, int], None]] = ctypes.CFUNCTYPE(
    None, *[ctypes.c_int64] * 3
)
"""Function that makes a compiled operation of its address."""


def random_weights(quant: QuantType, n_rows: int, n_cols: int, seed: int = 0) -> np.ndarray:
    """Return rows of blocks with random bytes: (n_rows, row_bytes) uint8."""
    rng = np.random.default_rng(seed)
    if quant.block_size == 1:
        return gguf.quants.quantize(
            rng.standard_normal((n_rows, n_cols), np.float32), ggml_type(quant)
        ).view(np.uint8)
    return with_scales(
        quant, random_blocks(quant, n_rows, n_cols, seed), lambda n: rng.standard_normal(n) * 0.01
    )


def random_blocks(quant: QuantType, n_rows: int, n_cols: int, seed: int = 0) -> np.ndarray:
    """Return random blocks (n_rows, n_blocks, type_size) uint8, scales included."""
    shape = (n_rows, n_cols // quant.block_size, quant.type_size)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def filled_weights(quant: QuantType, n_rows: int, n_cols: int, byte: int) -> np.ndarray:
    """Return rows with the same value in every byte, and scales of 1."""
    blocks = np.full((n_rows, n_cols // quant.block_size, quant.type_size), byte, np.uint8)
    return with_scales(quant, blocks, np.ones)


def with_scales(
    quant: QuantType, blocks: np.ndarray, values: Callable[[tuple[int, ...]], np.ndarray]
) -> np.ndarray:
    """Write scales into blocks, and return the rows: (n_rows, row_bytes)."""
    if quant.name in PUT_SCALES:
        PUT_SCALES[quant.name](blocks, values(blocks.shape[:2]))
    for offset in TYPES_BY_NAME[quant.name].f16_offsets:
        halves = values(blocks.shape[:2]).astype(np.float16)
        blocks[:, :, offset : offset + 2] = halves.view(np.uint8).reshape(*blocks.shape[:2], 2)
    return blocks.reshape(len(blocks), -1)


def _put_exponents(blocks: np.ndarray, values: np.ndarray) -> None:
    """Write scales as powers of two below each value's magnitude; weights are stored doubled."""
    blocks[:, :, 0] = np.clip(128 + np.floor(np.log2(np.abs(values))), 0, 254)


def _put_nibbles(blocks: np.ndarray, values: np.ndarray) -> None:
    """Write a float16 into the upper nibbles of the last four words."""
    halves = values.astype(np.float16).view(np.uint16)
    for k in range(4):
        byte = blocks[:, :, 49 + 2 * k]
        byte[:] = byte & 15 | (halves >> 4 * k & 15) << 4


def _put_small_floats(blocks: np.ndarray, values: np.ndarray) -> None:
    """Write four unsigned one-byte scales: the nearest below the value's magnitude, never 0x7F."""
    exponents = np.clip(np.floor(np.log2(np.abs(values))) + 8, 0, 14).astype(np.uint8)
    blocks[:, :, :4] = exponents[..., None] << 3 | (
        blocks[:, :, :4] & 7 if (values != 1).any() else 0
    )


PUT_SCALES: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
    "MXFP4": _put_exponents, "IQ1_M": _put_nibbles, "NVFP4": _put_small_floats,
}  # fmt: skip
"""Writers of scales for types whose scales are not float16: (blocks, values) -> None."""


def ggml_type(quant: QuantType) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[quant.name]


def dequantize(quant: QuantType, weights: np.ndarray) -> np.ndarray:
    """Return the rows as the gguf package or a twin decodes them: (n_rows, n_cols) float32."""
    if quant.name in ("Q1_0", "Q2_0"):
        return _dequantize_bits(quant, weights, {"Q1_0": 1, "Q2_0": 2}[quant.name])
    return gguf.quants.dequantize(np.ascontiguousarray(weights), ggml_type(quant))


def _dequantize_bits(quant: QuantType, weights: np.ndarray, n_bits: int) -> np.ndarray:
    """Decode blocks of a float16 scale and weights of one or two bits, lowest bits first."""
    blocks = np.ascontiguousarray(weights).reshape(-1, quant.type_size)
    d = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)
    q = (
        (blocks[:, 2:, None] >> shifts & (1 << n_bits) - 1)
        .reshape(len(blocks), -1)
        .astype(np.float32)
    )
    return (d * (2 * q - 1 if n_bits == 1 else q - 1)).reshape(len(weights), -1)


class Columns(NamedTuple):
    """Activations in the form that a type expects, and the values that they stand for."""

    q: np.ndarray
    d: np.ndarray
    sums: np.ndarray
    values: np.ndarray  # (n_tokens, n_cols) float64

    def from_column(self, first: int) -> "Columns":
        """Return the columns from ``first`` on, followed by the others, as in a padded buffer."""
        return Columns(*(np.roll(array, -first, axis=0) for array in self))


def columns_of(quant: QuantType, q: np.ndarray, d: float | None = None, seed: int = 1) -> Columns:
    """Return activations with the integers ``q`` (n_tokens, n_cols), or q as floats, padded with
    further columns.

    Args:
        d: the scale of all groups; random where it is not given.
    """
    rng = np.random.default_rng(seed)
    n_tokens, n_cols = q.shape
    padded = np.concatenate([q, rng.integers(-127, 128, (-n_tokens % TILE_TOKENS, n_cols))])
    if quant.activations in ("f32", "f16", "bf16"):
        y = (padded / 50).astype(np.float32)
        return Columns(y, y, y, y.astype(np.float64))
    group = {"q8_k": 256, "q8_0": 32}[quant.activations]
    scales = rng.uniform(0.005, 0.02, (len(padded), n_cols // group)).astype(np.float32)
    if d is not None:
        scales[:] = d
    values = padded * np.repeat(scales.astype(np.float64), group, axis=1)

    def sums(n: int) -> np.ndarray:
        return padded.reshape(len(padded), n_cols // group, group // n, n).sum(-1)

    group_sums = (
        np.concatenate([sums(16), sums(32)], -1).astype(np.int16)
        if group == 256
        else sums(32).astype(np.int32)
    )
    return Columns(padded.astype(np.int8), scales, group_sums, values)


def random_columns(quant: QuantType, n_tokens: int, n_cols: int) -> Columns:
    return columns_of(quant, np.random.default_rng(7).integers(-127, 128, (n_tokens, n_cols)))


def padded(weights: np.ndarray) -> np.ndarray:
    return np.concatenate([weights.ravel(), np.full(PADDING_BYTES, 255, np.uint8)])


def read_by(
    quant: QuantType, columns: Columns, n_tokens: int, kernel: ProductKernel
) -> list[np.ndarray]:
    """Return q, d and sums in the order that a kernel reads them."""
    arrays = [np.ascontiguousarray(array) for array in columns[:3]]
    if kernel != "matmul" and quant.activations in ("q8_k", "q8_0"):
        form = FORMS[quant.form(kernel)]
        n = columns.q.shape[1]
        q = in_pairs(arrays[0], form) if form.offsets is not None else in_rows(arrays[0], n)
        return [q, *(in_rows(array, n, form.group) for array in arrays[1:])]
    if kernel != "matmul" or not quant.product_width:
        return arrays
    arrays = [array[: -(-n_tokens // TILE_TOKENS) * TILE_TOKENS] for array in arrays]
    q, d, sums = interleaved(*arrays, TILE_TOKENS, INTERLEAVED_TOKENS)
    return [q.astype(np.int16) if quant.product_width == "words" else q, d, sums]


def multiply(
    quant: QuantType,
    weights: np.ndarray,
    columns: Columns,
    n_tokens: int,
    n_threads: int = 1,
    add: np.ndarray | None = None,
    small_batch: bool = False,
    in_place: bool = False,
) -> np.ndarray:
    """Run ``matvec`` (n_tokens 0), ``small_batch`` or ``matmul``, and return (n_tokens or 1,
    n_rows) float32. Eight guard values after every row must stay unchanged.

    Args:
        in_place: Whether the product is added to the memory of the result, which is 12345
            everywhere.
    """
    n_rows, row_bytes = weights.shape
    kernel: ProductKernel = "small_batch" if small_batch else "matmul" if n_tokens else "matvec"
    out = np.full((max(n_tokens, 1), n_rows + 8), 12345.0, np.float32)
    memory = padded(weights)
    (q, d, sums) = read_by(quant, columns, n_tokens, kernel)
    scratch = np.empty(n_threads * SCRATCH_BYTES + 64, np.uint8)
    claims = np.zeros(n_threads * COUNTER_BYTES // 8, np.int64)
    if in_place:
        add = out
    record = words(
        MATMUL, step=words(STEP, n_tokens=max(n_tokens, 1)), weights=memory, row_bytes=row_bytes,
        n_rows=n_rows,
        n_cols=columns.q.shape[1], q=q, d=d, sums=sums, out=out, out_stride=out.shape[1],
        scratch=scratch,
        scratch_bytes=SCRATCH_BYTES, claims=claims, add=0 if add is None else add,
        add_stride=0 if add is None or len(add) == 1 else add.shape[1],
    )  # fmt: skip
    run(f"{kernel} {quant.name}", record, n_threads)
    assert (out[:, n_rows:] == 12345.0).all(), "a kernel wrote past its rows"
    return out[:, :n_rows]


def embed(
    quant: QuantType, weights: np.ndarray, tokens: list[int], n_cols: int, n_threads: int = 1
) -> np.ndarray:
    """Run ``embed`` and return (n_tokens, n_cols) float32."""
    out = np.zeros((len(tokens), n_cols), np.float32)
    memory = padded(weights)
    ids = np.array(tokens, np.int32)
    record = words(
        EMBED, step=words(STEP, n_tokens=len(tokens), tokens=ids), weights=memory,
        row_bytes=weights.shape[1],
        n_blocks=n_cols // quant.block_size, out=out, dim=n_cols,
    )  # fmt: skip
    run(f"embed {quant.name}", record, n_threads)
    return out


class Words(np.ndarray):
    """Record that keeps the arrays it points to alive."""


def words(record: NamedTuple, **values: int | np.ndarray) -> np.ndarray:
    """Return a record of ``engine.kernels.records`` by the names of its words: numbers, or arrays
    for their addresses."""
    record_words = np.zeros(32, np.int64).view(Words)
    record_words.kept = [*values.values()]
    for name, value in values.items():
        record_words[getattr(record, name) // 8] = (
            value.ctypes.data if isinstance(value, np.ndarray) else value
        )
    return record_words


def run(name: str, record: np.ndarray, n_threads: int) -> None:
    """Call an operation of a plan with a record, on threads of its own."""
    function = KERNEL(address_of(place_of(name)))
    crew = [
        threading.Thread(target=function, args=(record.ctypes.data, i, n_threads))
        for i in range(n_threads)
    ]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()


def map_of_a_dropped_file(path: Path, n_bytes: int) -> np.ndarray:
    """Return a map, as bytes, of a new file that is not in memory; skip the test if the file system
    keeps it there."""
    path.write_bytes(os.urandom(n_bytes))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        view = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    if resident_bytes(view) != 0:
        pytest.skip("this file system keeps files in memory")
    return view
