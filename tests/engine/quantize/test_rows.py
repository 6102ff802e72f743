"""Quantised rows against llama.cpp's errors (``errors.json``) and NumPy twins, and their range."""

import json

import gguf
import numpy as np
import pytest

from engine.errors import BrokenModelError
from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.quantize.rows import KERNELS, WRITABLE, quantise_rows
from tests.programs.engine.errors_peer import GOLDEN, error, importance, values

pytestmark = pytest.mark.slow

THEIRS = json.loads(GOLDEN.read_text(encoding="utf-8"))
every_kernel = pytest.mark.parametrize("name", KERNELS)


def back(blocks: np.ndarray, name: str) -> np.ndarray:
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])


@every_kernel
def test_errors_are_no_larger_than_those_of_llama_cpp(name: str) -> None:
    rows = values()
    costs = importance()
    plain, weighted = THEIRS[name]
    assert error(quantise_rows(rows, name), name, rows) <= plain
    assert error(quantise_rows(rows, name, costs), name, rows, costs) <= weighted * 1.001


@every_kernel
def test_importance_moves_errors_to_other_columns(name: str) -> None:
    if name == "Q8_0":
        return  # the scale is set by the largest value, whatever the importance
    rows = values()
    costs = importance()
    plain = quantise_rows(rows, name)
    weighted = quantise_rows(rows, name, costs)
    assert error(weighted, name, rows, costs) < 0.99 * error(plain, name, rows, costs)
    assert error(weighted, name, rows) > error(plain, name, rows)


def test_zero_importance_counts_as_no_importance() -> None:
    rows = values()
    assert np.array_equal(
        quantise_rows(rows, "Q4_K", np.zeros(768, np.float32)), quantise_rows(rows, "Q4_K")
    )


def test_a_block_without_importance_is_quantised_normally() -> None:
    costs = importance()
    costs[:256] = 0
    rows = values()
    restored = back(quantise_rows(rows, "Q4_K", costs), "Q4_K")
    assert np.abs(restored[:, :256] - rows[:, :256]).mean() < 0.2 * np.abs(rows[:, :256]).mean()


def halves(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def test_q8_0_is_its_twin_to_the_bit() -> None:
    blocks = values().reshape(-1, 32)
    d = halves(np.abs(blocks).max(axis=1, keepdims=True) * np.float32(1 / 127))
    q = np.rint(blocks * (1 / d)).clip(-128, 127).astype(np.int8)
    twin = np.concatenate([d.astype(np.float16).view(np.uint8), q.view(np.uint8)], axis=1)
    assert np.array_equal(quantise_rows(values(), "Q8_0").reshape(-1, 34), twin)


def weights_of(blocks: np.ndarray) -> np.ndarray:
    return 2 * np.sqrt((blocks**2).mean(axis=-1, keepdims=True)) + np.abs(blocks)


def test_q4_0_is_as_good_as_its_twin() -> None:
    blocks = values().reshape(-1, 32).astype(np.float64)
    weights = weights_of(blocks)
    top = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    best = np.full((len(blocks), 1), -1.0)
    d = np.zeros((len(blocks), 1))
    for reach in (sign * (8 + 0.2 * k) for sign in (-1, 1) for k in range(-2, 3)):
        q = np.rint(blocks * reach / top).clip(-8, 7)
        xq, qq = ((weights * by * q).sum(axis=1, keepdims=True) for by in (blocks, q))
        d = np.where(xq**2 / qq > best, xq / qq, d)
        best = np.maximum(best, xq**2 / qq)
    d = halves(d)
    q = np.rint(blocks / d).clip(-8, 7)
    restored = back(quantise_rows(values(), "Q4_0"), "Q4_0").reshape(-1, 32)
    assert (np.abs(restored - d * q) < 1e-7).mean() > 0.99
    error, twin = ((weights * (x - blocks) ** 2).sum() for x in (restored, d * q))
    assert abs(error / twin - 1) < 1e-4


def best_pair(blocks: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the best minimum of each sub-block among 21 ranges.

    Also return the sums of w x q, w q and w q^2 for its codes.
    """
    low, high = (limit(axis=-1, keepdims=True) for limit in (blocks.min, blocks.max))
    low = np.minimum(low, 0)
    w, x = (array.sum(axis=-1) for array in (weights, weights * blocks))
    best = np.full(w.shape, -1.0)
    best_values = [np.zeros(w.shape) for _ in range(4)]
    for k in range(21):
        q = np.rint((blocks - low) * (15 - 1 + 0.1 * k) / (high - low)).clip(0, 15)
        xq, q_sum, qq = ((weights * by).sum(axis=-1) for by in (blocks * q, q, q * q))
        over = w * qq - q_sum**2
        s = (w * xq - x * q_sum) / over
        m = (qq * x - q_sum * xq) / over
        s = np.where(m > 0, xq / qq, s)
        m = np.minimum(m, 0)
        gain = s * xq + m * x
        best_values = [
            np.where(gain > best, candidate, old)
            for candidate, old in zip((m, xq, q_sum, qq), best_values, strict=True)
        ]
        best = np.maximum(best, gain)
    return tuple(best_values)


def test_q4_k_is_as_good_as_its_twin() -> None:
    blocks = values().reshape(-1, 8, 32).astype(np.float64)
    weights = weights_of(blocks)
    m, xq, q_sum, qq = best_pair(blocks, weights)
    dmin = halves(-m.min(axis=1, keepdims=True) / 63).astype(np.float64)
    minimum = np.rint(-m / dmin)
    scale = (xq + dmin * minimum * q_sum) / qq
    d = halves(scale.max(axis=1, keepdims=True) / 63).astype(np.float64)
    scale = np.rint(scale / d)
    for again in range(3):
        a = (
            np.rint((blocks + (dmin * minimum)[..., None]) / (d * scale)[..., None]).clip(0, 15)
            * scale[..., None]
        )
        if again == 2:
            break
        b = np.broadcast_to(minimum[..., None], a.shape)
        aa, ab, bb, xa, xb = (
            (weights * by).sum(axis=(1, 2))[:, None]
            for by in (a * a, a * b, b * b, blocks * a, blocks * b)
        )
        d, dmin = (halves(of / (aa * bb - ab**2)) for of in (xa * bb - ab * xb, xa * ab - aa * xb))
    twin = d[..., None] * a - (dmin * minimum)[..., None]
    quantised = back(quantise_rows(values(), "Q4_K"), "Q4_K").reshape(-1, 8, 32)
    error, twin_error = ((weights * (x - blocks) ** 2).sum() for x in (quantised, twin))
    assert abs(error / twin_error - 1) < 1e-3
    assert (np.abs(quantised - twin) < 1e-6).mean() > 0.95


@pytest.mark.smoke
@every_kernel
def test_threads_change_nothing(name: str) -> None:
    rows = np.tile(values(), (12, 1))
    assert np.array_equal(quantise_rows(rows, name, n_threads=3), quantise_rows(rows, name))


@every_kernel
@pytest.mark.parametrize("n_blocks", [1, 3, 9])
def test_blocks_are_quantised_independently(name: str, n_blocks: int) -> None:
    size = TYPES_BY_NAME[name].block_size
    row = values().ravel()[: n_blocks * size].reshape(1, -1)
    alone = [quantise_rows(row[:, k * size : (k + 1) * size].copy(), name) for k in range(n_blocks)]
    assert np.array_equal(quantise_rows(row, name), np.concatenate(alone, axis=1))


@every_kernel
def test_zeros_and_equal_values_are_preserved(name: str) -> None:
    rows = np.zeros((4, 256), np.float32)
    rows[2] = -0.25
    rows[1] = 0.5
    rows[3, 5] = 1e-20
    restored = back(quantise_rows(rows, name), name)
    assert np.abs(restored - rows).max() < 0.02


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(name: str, bad: float) -> None:
    rows = values()
    rows[5, 17] = bad
    with pytest.raises(BrokenModelError, match="NaN"):
        quantise_rows(rows, name)


@pytest.mark.parametrize("name", [*KERNELS, "F16"])
def test_numbers_too_large_for_a_half_are_refused(name: str) -> None:
    rows = values()
    rows[5, 17] = 70_000
    with pytest.raises(BrokenModelError, match="above 65504"):
        quantise_rows(rows, name)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_casts_round_to_the_nearest(name: str) -> None:
    rows = values()
    cast = quantise_rows(rows, name)
    assert np.array_equal(
        cast,
        gguf.quants.quantize(rows, gguf.GGMLQuantizationType[name])
        .view(np.uint8)
        .reshape(cast.shape),
    )
