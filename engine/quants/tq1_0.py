"""TQ1_0: 256 weights of three values in digits to the base three, with one scale.

    qs  48 bytes  five digits each: of the first 32 bytes weights l, l+32, ..., l+128 of 160, of the others weights l,
                  l+16, ..., l+64 of the next 80
    qh  4 bytes   four digits each: weights l, l+4, l+8, l+12 of the last 16
    d   f16       scale
                  48 + 4 + 2 = 54

A weight is ``d * (digit - 1)``. The digits of a byte come after the point: multiplied by 3^n, without what overflows,
its digit n is 0 below 256/3, 1 below 512/3 and else 2. Layout: ggml-common.h, block_tq1_0.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul import finish_32
from engine.kernels.matvec_k import few_k, matvec_k
from engine.kernels.ternary import finish_row, scaled_weights, walk
from engine.kernels.tiles import NARROW, matmul_tiles

BLOCK_BYTES = 54
QH, D = 48, 52


@inner
def next_digits(x):
    """The numbers with the next digit in front, shifted by 128 before and after."""
    return vec.add(vec.add(x, x), x)


@inner
def digits(x):
    """The first digits, 0 to 2, of numbers shifted by 128."""
    above = vec.add(vec.bytes_above(x, vec.splat_i8x32(85 - 128)), vec.bytes_above(x, vec.splat_i8x32(170 - 128)))
    return vec.sub(vec.splat_i8x32(0), above)


@inner
def halves(low, high):
    """Lower half of one register and upper half of another."""
    return vec.join_i8(vec.low_half_i8(low), vec.high_half_i8(high))


@inner
def weights(block):
    """The 256 weights as bytes, one too large: eight registers of 32."""
    top = vec.splat_i8x32(-128)
    a0 = vec.xor(vec.load_i8x32(block), top)
    a1 = next_digits(a0)
    a2 = next_digits(a1)
    a3 = next_digits(a2)
    a4 = next_digits(a3)
    b0 = vec.xor(vec.broadcast_16_bytes(block + 32), top)
    b1 = next_digits(b0)
    b2 = next_digits(b1)
    b3 = next_digits(b2)
    c0 = vec.xor(vec.broadcast_4_bytes(block + QH), top)
    c1 = next_digits(c0)
    c2 = next_digits(c1)
    c = vec.words_of_four(c0, c1, c2, next_digits(c2))
    b4 = halves(next_digits(b3), c)
    first = digits(a0), digits(a1), digits(a2), digits(a3)
    return first, (digits(a4), digits(halves(b0, b1)), digits(halves(b2, b3)), digits(b4))


@inner
def four_groups(w, y):
    """Products of 128 weights as i16x16."""
    w0, w1, w2, w3 = w
    low = vec.add(vec.maddubs(w0, vec.load_i8x32(y)), vec.maddubs(w1, vec.load_i8x32(y + 32)))
    return vec.add(low, vec.add(vec.maddubs(w2, vec.load_i8x32(y + 64)), vec.maddubs(w3, vec.load_i8x32(y + 96))))


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations: all of them fit into int16."""
    first, last = weights(block)
    products = vec.add(four_groups(first, y), four_groups(last, y + 128))
    total = vec.maddwd(vec.sub(products, vec.load_i16x16(sums)), vec.splat_i16x16(1))
    d = vec.fmul(vec.load_f16x4(block + D - 6), vec.splat_f32x4(d_y))
    return vec.fma(vec.fourth_f32(d), vec.f32_of_i32x8(total), acc), acc_min


@inner
def store_half(w, out):
    """Write 128 weights of a row's part of a tile."""
    w0, w1, w2, w3 = w
    vec.store_i8x32(out, w0)
    vec.store_i8x32(out + 32, w1)
    vec.store_i8x32(out + 64, w2)
    vec.store_i8x32(out + 96, w3)


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    first, last = weights(block)
    store_half(first, out)
    store_half(last, out + 128)
    finish_row(out, vec.load_f16(block + D))


@inner
def dequantize_half(w, d, out):
    """Write 128 weights as f32."""
    w0, w1, w2, w3 = w
    scaled_weights(w0, d, out)
    scaled_weights(w1, d, out + 128)
    scaled_weights(w2, d, out + 256)
    scaled_weights(w3, d, out + 384)


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    first, last = weights(block)
    dequantize_half(first, vec.load_f16(block + D), out)
    dequantize_half(last, vec.load_f16(block + D), out + 512)


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    matvec_k(dot, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_k(dot, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish_32, walk, NARROW, 256, BLOCK_BYTES, op, thread, n_threads)
