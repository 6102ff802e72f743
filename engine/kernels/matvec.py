"""Weight rows times one activation column: the loops of decode, shared by the quantised types.

A type supplies ``dot``, which adds one block's contribution to f32 lanes; the loops walk contiguous rows and prefetch
ahead of them. Distances in bytes were swept per type (PERFORMANCE.md).
"""

from engine.jit import inner
from engine.kernels.share import share
from engine.records import MATMUL as F
from engine.simd import (
    fadd,
    load_f32,
    load_i64,
    prefetch_l2,
    splat_f32x8,
    store_f32,
    sum_f32x8,
)


@inner
def finish(op, row, value):
    """Write one row's result, with the bias or residual added where the record names one."""
    add = load_i64(op + F.add)
    if add != 0:
        value = value + load_f32(add + 4 * row)
    store_f32(load_i64(op + F.out) + 4 * row, value)


@inner
def prefetch_block(at, n_bytes):
    """Ask for every cache line that begins within the next ``n_bytes``."""
    for line in range(0, n_bytes, 64):
        prefetch_l2(at + line)


@inner
def matvec_k(dot, block_bytes, far_bytes, op, thread, n_threads):
    """Rows of 256-weight blocks against activations in q8_k form.

    Args:
        dot: (block, y, d_y, sums, acc, acc_min) -> (acc, acc_min); acc and acc_min are f32x8.
        block_bytes: type_size of the quantised type.
        far_bytes: how far ahead lines are asked for.
    """
    weights, row_bytes = load_i64(op + F.weights), load_i64(op + F.row_bytes)
    n_blocks = load_i64(op + F.n_cols) // 256
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    first, last = share(load_i64(op + F.n_rows), 8, thread, n_threads)
    for row in range(first, last):
        acc, acc_min = splat_f32x8(0.0), splat_f32x8(0.0)
        block = weights + row * row_bytes
        for i in range(n_blocks):
            prefetch_block(block + far_bytes, block_bytes)
            acc, acc_min = dot(block, q + 256 * i, load_f32(d + 4 * i), sums + 48 * i, acc, acc_min)
            block += block_bytes
        finish(op, row, sum_f32x8(fadd(acc, acc_min)))


@inner
def matvec_32(dot, block_bytes, far_bytes, op, thread, n_threads):
    """Rows of 32-weight blocks against activations in q8_0 form.

    Args:
        dot: (block, y, d_y, sum_y, acc) -> acc; sum_y is the address of the block's int32 sum.
    """
    weights, row_bytes = load_i64(op + F.weights), load_i64(op + F.row_bytes)
    n_blocks = load_i64(op + F.n_cols) // 32
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    first, last = share(load_i64(op + F.n_rows), 8, thread, n_threads)
    for row in range(first, last):
        even, odd = splat_f32x8(0.0), splat_f32x8(0.0)
        block = weights + row * row_bytes
        for i in range(0, n_blocks - 1, 2):
            prefetch_block(block + far_bytes, 2 * block_bytes)
            even = dot(block, q + 32 * i, load_f32(d + 4 * i), sums + 4 * i, even)
            odd = dot(block + block_bytes, q + 32 * i + 32, load_f32(d + 4 * i + 4), sums + 4 * i + 4, odd)
            block += 2 * block_bytes
        if n_blocks & 1:
            i = n_blocks - 1
            even = dot(block, q + 32 * i, load_f32(d + 4 * i), sums + 4 * i, even)
        finish(op, row, sum_f32x8(fadd(even, odd)))
