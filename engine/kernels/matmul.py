"""Weight rows times many activation columns: the loops of prefill, shared by the quantised types.

Each thread unpacks eight rows at a time into a tile of its own scratch memory, ``[k/4][8 rows][4 bytes]``, and runs
all columns of the block over it, four at a time. A lane of every accumulator is one row, so nothing is summed across
lanes, and a column's result does not depend on its neighbours.
"""

from engine.jit import inner
from engine.kernels.share import share
from engine.records import MATMUL as F
from engine.records import STEP
from engine.simd import (
    add,
    broadcast_4_bytes,
    f32_of_i32x8,
    fadd,
    fma,
    fmul,
    i16_of_i8,
    load_f32,
    load_f32x8,
    load_i8x32,
    load_i16x16,
    load_i64,
    maddubs,
    maddwd,
    prefetch_l1,
    splat_f32x8,
    splat_i16x16,
    splat_i32x8,
    store_f32,
    store_f32x8,
    store_i32,
    transpose_store,
)

COLUMNS = 4
CHUNK_K = 4
"""Superblocks unpacked before the columns run over them: 4 tiles stay in a 32 kB cache with the activations."""
TILE_K = 2880
TILE_K_SCALES, TILE_K_MINS, TILE_K_D, TILE_K_DMIN = 2048, 2560, 2816, 2848
"""Byte offsets in a tile of 8 rows by 256 columns: 2048 + 512 + 256 + 32 + 32 = 2880."""


@inner
def put_scale(tile, row, index, scale):
    """Enter an int16 scale of one row and sub-block, twice: once for each int16 of the row's lane."""
    store_i32(tile + TILE_K_SCALES + 32 * index + 4 * row, (scale & 0xFFFF) | (scale << 16))


@inner
def put_min_pair(tile, row, index, low, high):
    """Enter the int16 minima of two neighbouring sub-blocks of one row."""
    store_i32(tile + TILE_K_MINS + 32 * index + 4 * row, (low & 0xFFFF) | (high << 16))


@inner
def put_d(tile, row, d, dmin):
    """Enter the two f32 scales of one row's superblock; dmin comes negated."""
    store_f32(tile + TILE_K_D + 4 * row, d)
    store_f32(tile + TILE_K_DMIN + 4 * row, dmin)


@inner
def unpack_tile_k(weights32, unpack_scales, block, row_bytes, n_rows, tile):
    """Unpack one superblock of up to eight rows; missing rows repeat the last one and are never stored."""
    end = n_rows - 1
    r1, r2, r3 = min(1, end) * row_bytes, min(2, end) * row_bytes, min(3, end) * row_bytes
    r4, r5, r6, r7 = min(4, end) * row_bytes, min(5, end) * row_bytes, min(6, end) * row_bytes, min(7, end) * row_bytes
    for j in range(8):
        transpose_store(
            tile + 256 * j,
            weights32(block, j),
            weights32(block + r1, j),
            weights32(block + r2, j),
            weights32(block + r3, j),
            weights32(block + r4, j),
            weights32(block + r5, j),
            weights32(block + r6, j),
            weights32(block + r7, j),
        )
    for row in range(8):
        unpack_scales(block + min(row, end) * row_bytes, tile, row)


@inner
def integer_columns_k(n_adds, group, tile, y, stride):
    """Exact integer part of one superblock for four columns: lanes are rows.

    Args:
        n_adds: products that fit into int16 before they must be scaled.
        group: weights that share a scale, 16 or 32.
    """
    t0, t1, t2, t3 = splat_i32x8(0), splat_i32x8(0), splat_i32x8(0), splat_i32x8(0)
    for g in range(64 // n_adds):
        s0, s1, s2, s3 = splat_i16x16(0), splat_i16x16(0), splat_i16x16(0), splat_i16x16(0)
        for k in range(n_adds):
            w = load_i8x32(tile + 32 * (g * n_adds + k))
            at = y + 4 * (g * n_adds + k)
            s0 = add(s0, maddubs(w, broadcast_4_bytes(at)))
            s1 = add(s1, maddubs(w, broadcast_4_bytes(at + stride)))
            s2 = add(s2, maddubs(w, broadcast_4_bytes(at + 2 * stride)))
            s3 = add(s3, maddubs(w, broadcast_4_bytes(at + 3 * stride)))
        scale = load_i16x16(tile + TILE_K_SCALES + 32 * (4 * g * n_adds // group))
        t0 = add(t0, maddwd(s0, scale))
        t1 = add(t1, maddwd(s1, scale))
        t2 = add(t2, maddwd(s2, scale))
        t3 = add(t3, maddwd(s3, scale))
    return t0, t1, t2, t3


@inner
def minima_k(n_min_pairs, tile, sums):
    """Sum over sub-blocks of minimum times activation sum, for one column."""
    total = splat_i32x8(0)
    at = sums if n_min_pairs == 8 else sums + 32
    for p in range(n_min_pairs):
        total = add(total, maddwd(load_i16x16(tile + TILE_K_MINS + 32 * p), as_pairs(at + 4 * p)))
    return f32_of_i32x8(total)


@inner
def as_pairs(address):
    """Two int16 from memory in all lanes."""
    return i16_of_i8(broadcast_4_bytes(address))


@inner
def add_column(acc, tile, t, minima, d_y):
    """Scale one column's integers and add them to its f32 lanes in memory."""
    value = fmul(load_f32x8(tile + TILE_K_D), f32_of_i32x8(t))
    value = fma(load_f32x8(tile + TILE_K_DMIN), minima, value)
    store_f32x8(acc, fma(value, splat_f32x8(d_y), load_f32x8(acc)))


@inner
def prefetch_columns(y, stride):
    """Ask for the 256 activations of the next four columns while these four are worked on."""
    for c in range(COLUMNS, 2 * COLUMNS):
        for line in range(0, 256, 64):
            prefetch_l1(y + c * stride + line)


@inner
def matmul_k(weights32, unpack_scales, columns, n_min_pairs, block_bytes, op, thread, n_threads):
    """Rows of 256-weight blocks against columns in q8_k form.

    Args:
        weights32: (block, j) -> i8x32, the j-th 32 weights as unsigned bytes.
        unpack_scales: (block, tile, row) -> None, enters scales, minima and d of one row.
        columns: (tile, y, stride) -> four i32x8.
        n_min_pairs: 4 (sub-blocks of 32), 8 (of 16) or 0 (no minima).
    """
    weights, row_bytes = load_i64(op + F.weights), load_i64(op + F.row_bytes)
    n_rows, n_cols = load_i64(op + F.n_rows), load_i64(op + F.n_cols)
    n_blocks = n_cols // 256
    q, d, sums = load_i64(op + F.q), load_i64(op + F.d), load_i64(op + F.sums)
    n_tokens = load_i64(load_i64(op + F.step) + STEP.n_tokens)
    tiles = load_i64(op + F.scratch) + thread * load_i64(op + F.scratch_bytes)
    acc = tiles + CHUNK_K * TILE_K
    first, last = share(n_rows, 8, thread, n_threads)
    for row in range(first, last, 8):
        n_live = min(8, last - row)
        clear_columns(acc, n_tokens)
        for start in range(0, n_blocks, CHUNK_K):
            n_chunk = min(CHUNK_K, n_blocks - start)
            for b in range(n_chunk):
                block = weights + row * row_bytes + (start + b) * block_bytes
                unpack_tile_k(weights32, unpack_scales, block, row_bytes, n_live, tiles + b * TILE_K)
            for c in range(0, n_tokens, COLUMNS):
                for b in range(n_chunk):
                    tile = tiles + b * TILE_K
                    i = start + b
                    prefetch_columns(q + c * n_cols + 256 * i, n_cols)
                    t0, t1, t2, t3 = columns(tile, q + c * n_cols + 256 * i, n_cols)
                    s, e = sums + 48 * (c * n_blocks + i), d + 4 * (c * n_blocks + i)
                    at = acc + 32 * c
                    add_column(at, tile, t0, minima_k(n_min_pairs, tile, s), load_f32(e))
                    s, e = s + 48 * n_blocks, e + 4 * n_blocks
                    add_column(at + 32, tile, t1, minima_k(n_min_pairs, tile, s), load_f32(e))
                    s, e = s + 48 * n_blocks, e + 4 * n_blocks
                    add_column(at + 64, tile, t2, minima_k(n_min_pairs, tile, s), load_f32(e))
                    s, e = s + 48 * n_blocks, e + 4 * n_blocks
                    add_column(at + 96, tile, t3, minima_k(n_min_pairs, tile, s), load_f32(e))
        store_columns(op, row, n_live, acc, n_tokens)


@inner
def clear_columns(acc, n_tokens):
    """Set the accumulators of all columns to zero, the unused ones of the last four too."""
    for c in range((n_tokens + COLUMNS - 1) // COLUMNS * COLUMNS):
        store_f32x8(acc + 32 * c, splat_f32x8(0.0))


@inner
def store_columns(op, row, n_live, acc, n_tokens):
    """Write eight rows of every column, with the bias or residual added where the record names one."""
    n_rows, out = load_i64(op + F.out_stride), load_i64(op + F.out)
    addend, add_stride = load_i64(op + F.add), load_i64(op + F.add_stride)
    for c in range(n_tokens):
        at, extra = out + 4 * (c * n_rows + row), addend + 4 * (c * add_stride + row)
        if n_live == 8:
            value = load_f32x8(acc + 32 * c)
            if addend != 0:
                value = fadd(value, load_f32x8(extra))
            store_f32x8(at, value)
        else:
            for r in range(n_live):
                one = load_f32(acc + 32 * c + 4 * r)
                if addend != 0:
                    one = one + load_f32(extra + 4 * r)
                store_f32(at + 4 * r, one)
