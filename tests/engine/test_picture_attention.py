"""Attention of encoders by products of bfloat16, against NumPy with the same roundings. Other
processors than those with AMX do not use it, but compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.kernels import picture_sizes
from engine.kernels.records import CACHE, STEP
from engine.machine.memory import Memory
from engine.plan.operation import float_bits
from tests.engine.kernel_call import run, words

Array = np.ndarray[Any, np.dtype[np.float64]]
N_HEADS = 3
GUARD = 12345.0
SPARE_ROWS = 7
"""Rows beyond the last that the kernel may write."""


def rounded(x: Array) -> Array:
    """Return numbers rounded to bfloat16."""
    bits = x.astype(np.float32).view(np.uint32)
    whole = (bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    return whole.view(np.float32).astype(np.float64)


def expected_rows(q: Array, k: Array, v: Array, scale: float) -> Array:
    queries = rounded(q * scale * np.log2(np.e))
    scores = np.einsum("qhd,khd->hqk", queries, rounded(k))
    weights = rounded(np.exp2(scores - scores.max(-1, keepdims=True)))
    totals = weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights / totals, rounded(v))


def attend(
    q: Array, k: Array, v: Array, scale: float, n_threads: int, heads_together: int = N_HEADS
) -> Array:
    """Run both kernels; rows beyond the spare ones must stay as they were."""
    n, n_heads, head_dim = q.shape
    n_slots = picture_sizes.padded(n) + 64
    tiles = Memory(4 * n_heads * n_slots * picture_sizes.padded(head_dim))
    scratch_bytes = picture_sizes.scratch_bytes(head_dim)
    scratch = Memory(n_threads * scratch_bytes)
    out = np.full((n + SPARE_ROWS + 1, n_heads, head_dim), GUARD, np.float32)
    queries, keys, values = (np.ascontiguousarray(x, np.float32) for x in (q, k, v))
    shared = {
        "step": words(STEP, n_tokens=n), "n_heads": n_heads, "head_dim": head_dim,
        "n_slots": n_slots, "k_cache": tiles.address,
        "v_cache": tiles.address + tiles.n_bytes // 2, "scratch": scratch.address,
        "scratch_bytes": scratch_bytes,
    }  # fmt: skip
    run("store bf16", words(CACHE, x=keys, v=values, **shared), n_threads)
    for first in range(0, n_heads, heads_together):
        record = words(
            CACHE,
            x=queries,
            out=out,
            scale=float_bits(scale),
            first_kv_head=first,
            end_kv_head=min(first + heads_together, n_heads),
            **shared,
        )
        run("attention bf16", record, n_threads)
    assert (out[n + SPARE_ROWS :] == GUARD).all(), "the kernel wrote past its rows"
    return out[:n].astype(np.float64)


def random_heads(n: int, head_dim: int, seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    q, k, v = rng.standard_normal((3, n, N_HEADS, head_dim)).astype(np.float32).astype(np.float64)
    return 2 * q, k, v + 0.5


def nmse(rows: Array, expected: Array) -> float:
    return float(((rows - expected) ** 2).sum() / (expected**2).sum())


@pytest.mark.parametrize(
    ("n", "head_dim"), [(1, 64), (33, 64), (256, 32), (259, 72), (300, 40), (545, 128), (16, 8)]
)
def test_rows_equal_those_of_numpy(n: int, head_dim: int) -> None:
    q, k, v = random_heads(n, head_dim, n)
    rows = attend(q, k, v, head_dim**-0.5, n_threads=1)
    assert nmse(rows, expected_rows(q, k, v, head_dim**-0.5)) < 2e-6


def test_threads_and_groups_of_heads_change_nothing() -> None:
    q, k, v = random_heads(150, 64, 1)
    rows = attend(q, k, v, 0.125, n_threads=1)
    assert (attend(q, k, v, 0.125, n_threads=3) == rows).all()
    assert (attend(q, k, v, 0.125, n_threads=2, heads_together=1) == rows).all()


def test_large_scores_do_not_overflow() -> None:
    q, k, v = random_heads(64, 32, 2)
    rows = attend(100 * q, 100 * k, v, 1.0, n_threads=1)
    assert nmse(rows, expected_rows(100 * q, 100 * k, v, 1.0)) < 1e-3
    rows = attend(-1000 * np.abs(q), np.abs(k), v, 1.0, n_threads=1)  # all far below zero
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("place", ["q", "k", "v"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_damaged_numbers_stay_damaged(place: str, number: float) -> None:
    arrays = dict(zip("qkv", random_heads(64, 32, 3), strict=True))
    arrays[place][40, 1, 5] = number
    rows = attend(*arrays.values(), 0.2, n_threads=1)
    assert not np.isfinite(rows[:, 1]).all()
    assert np.isfinite(rows[:, 0]).all()
