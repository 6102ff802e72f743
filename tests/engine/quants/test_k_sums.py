"""Sums of K types in the order that decode defines: eight lanes of f32, each of which adds a
superblock after the other, and a tree at the end. A NumPy twin gives the same bits for every number
of tokens, so every path keeps that order."""

from typing import NamedTuple

import numpy as np
import pytest

from engine.machine.level import HAS_ARM64, HAS_AVX2, HAS_FMA
from engine.quants.base import QUANT_TYPES
from tests.engine.kernel_call import Columns, multiply, random_columns, random_weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        HAS_ARM64 or not (HAS_AVX2 and HAS_FMA), reason="older levels have lanes in another order"
    ),
]


class Unpacked(NamedTuple):
    """Weights of blocks, (n_rows, n_blocks, ...), as the layouts in ``engine.quants`` say.

    Attributes:
        q: 256 integers without their offset.
        scales: Sixteen integers, one for each 16 weights.
        minima: Integers that the sums of activations are multiplied by: of 16 or of 32 each; those
            of an offset belong to ``d``.
        d: Scale of the scales.
        dmin: Scale of the minima, or None if they belong to ``d``.
    """

    q: np.ndarray
    scales: np.ndarray
    minima: np.ndarray
    d: np.ndarray
    dmin: np.ndarray | None


def halves(blocks: np.ndarray, offset: int) -> np.ndarray:
    """Return the f16 at an offset of each block as f32."""
    return (
        np.ascontiguousarray(blocks[..., offset : offset + 2])
        .view(np.float16)[..., 0]
        .astype(np.float32)
    )


def bits(blocks: np.ndarray, first: int, n_bytes: int, shift: int, mask: int) -> np.ndarray:
    """Return some bits of each of ``n_bytes`` bytes."""
    return (blocks[..., first : first + n_bytes].astype(np.int64) >> shift) & mask


def joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts, -1)


def q2_k(b: np.ndarray) -> Unpacked:
    q = joined([bits(b, 16 + 32 * n, 32, s, 3) for n in range(2) for s in (0, 2, 4, 6)])
    return Unpacked(q, bits(b, 0, 16, 0, 15), bits(b, 0, 16, 4, 15), halves(b, 80), halves(b, 82))


def q3_k(b: np.ndarray) -> Unpacked:
    low = joined([bits(b, 32 + 32 * n, 32, s, 3) for n in range(2) for s in (0, 2, 4, 6)])
    high = joined([bits(b, 0, 32, j, 1) for j in range(8)])
    lower = joined([bits(b, 96, 8, 0, 15), bits(b, 96, 8, 4, 15)])
    upper = joined([bits(b, 104, 4, s, 3) for s in (0, 2, 4, 6)])
    scales = (lower | upper << 4) - 32
    return Unpacked(low | high << 2, scales, 4 * scales, halves(b, 108), None)


def scales_of_twelve(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    last = bits(b, 12, 4, 0, 255)
    scales = joined([bits(b, 4, 4, 0, 63), (last & 15) | bits(b, 4, 4, 6, 3) << 4])
    minima = joined([bits(b, 8, 4, 0, 63), last >> 4 | bits(b, 8, 4, 6, 3) << 4])
    return scales.repeat(2, -1), minima


def q4_k(b: np.ndarray) -> Unpacked:
    q = joined([bits(b, 16 + 32 * j, 32, s, 15) for j in range(4) for s in (0, 4)])
    return Unpacked(q, *scales_of_twelve(b), halves(b, 0), halves(b, 2))


def q5_k(b: np.ndarray) -> Unpacked:
    low = joined([bits(b, 48 + 32 * j, 32, s, 15) for j in range(4) for s in (0, 4)])
    high = joined([bits(b, 16, 32, j, 1) for j in range(8)])
    return Unpacked(low | high << 4, *scales_of_twelve(b), halves(b, 0), halves(b, 2))


def q6_k(b: np.ndarray) -> Unpacked:
    low = joined([bits(b, 64 * n, 64, s, 15) for n in range(2) for s in (0, 4)])
    high = joined([bits(b, 128 + 32 * n, 32, s, 3) for n in range(2) for s in (0, 2, 4, 6)])
    scales = np.ascontiguousarray(b[..., 192:208]).view(np.int8).astype(np.int64)
    return Unpacked(low | high << 4, scales, 32 * scales, halves(b, 208), None)


UNPACK = {"Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c of f32, rounded once; the product is exact in float64."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def tree(lanes: np.ndarray) -> np.ndarray:
    """Return the sums of the last axis, half and half."""
    while lanes.shape[-1] > 1:
        n = lanes.shape[-1] // 2
        lanes = lanes[..., :n] + lanes[..., n:]
    return lanes[..., 0]


def twin(name: str, weights: np.ndarray, columns: Columns, c: int) -> np.ndarray:
    """Return the product of rows with one column, (n_rows,) f32."""
    size = QUANT_TYPES[name].type_size
    q, scales, minima, d, dmin = UNPACK[name](weights.reshape(len(weights), -1, size))
    y = columns.q[c].astype(np.int64).reshape(-1, 256)
    lanes = (q * scales.repeat(16, -1) * y).reshape(*q.shape[:2], 8, 8, 4).sum((2, 4))
    sums = y.reshape(len(y), -1, 256 // minima.shape[-1]).sum(-1)
    lows = (minima * sums).reshape(*minima.shape[:2], -1, 2).sum(-1)
    if dmin is None:
        lanes -= lows
    acc, acc_min = np.zeros((2, len(weights), 8), np.float32)
    for i, d_y in enumerate(columns.d[c].astype(np.float32)):
        acc = fma((d[:, i] * d_y)[:, None], lanes[:, i].astype(np.float32), acc)
        if dmin is not None:
            n = lows.shape[-1]
            factor = (dmin[:, i] * d_y)[:, None]
            acc_min[:, :n] = fma(factor, lows[:, i].astype(np.float32), acc_min[:, :n])
    return tree(acc - acc_min)


@pytest.mark.parametrize("name", UNPACK)
@pytest.mark.parametrize(("n_rows", "n_cols"), [(1, 256), (61, 1280)])
def test_every_path_adds_in_the_same_order(name: str, n_rows: int, n_cols: int) -> None:
    quant = QUANT_TYPES[name]
    weights = random_weights(quant, n_rows, n_cols)
    columns = random_columns(quant, 16, n_cols)
    added = np.random.default_rng(3).standard_normal((12, n_rows), np.float32)
    expected = np.array([twin(name, weights, columns, c) for c in range(12)]) + added
    alone = multiply(quant, weights, columns, 0, add=added[:1].copy())
    assert alone.tobytes() == expected[:1].tobytes()
    for n_tokens in range(1, 13):
        for n_threads in (1, 2):
            actual = multiply(
                quant, weights, columns, n_tokens, n_threads, added[:n_tokens].copy(), True
            )
            assert actual.tobytes() == expected[:n_tokens].tobytes()


@pytest.mark.parametrize("name", UNPACK)
def test_a_residual_is_added_once_to_the_last_row(name: str) -> None:
    """The last row of an odd number is computed as a pair with itself; the record may add the
    result to what is there."""
    quant = QUANT_TYPES[name]
    weights = random_weights(quant, 3, 256)
    columns = random_columns(quant, 4, 256)
    plain = multiply(quant, weights, columns, 3, small_batch=True)
    assert (
        multiply(quant, weights, columns, 3, small_batch=True, in_place=True) == plain + 12345
    ).all()
