"""Activations in all forms that kernels read, against a NumPy twin."""

import numpy as np
import pytest

from engine.kernels.records import QUANTIZE, STEP
from engine.kernels.tiles import INTERLEAVED_TOKENS, TILE_TOKENS
from engine.plan.buffers import FORMS, deinterleaved, in_pairs, in_rows, interleaved, out_of_pairs
from tests.engine.kernel_call import run, words

pytestmark = pytest.mark.slow

QUANTISED = [name for name, form in FORMS.items() if form.group]


def twin(x: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values, scales and sums (q, d, sums) of each token."""
    group = FORMS[name].group
    groups = x.reshape(len(x), -1, group)
    top = np.abs(groups).max(-1).astype(np.float32)
    d = top / np.float32(127)
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    q = np.rint(groups * inverse[..., None]).astype(np.int8)
    if group == 32:
        return (
            q.reshape(x.shape),
            d.astype(np.float16).astype(np.float32),
            q.sum(-1, dtype=np.int32),
        )
    sixteens = q.reshape(*q.shape[:2], 16, 16).sum(-1)
    magnitudes_and_sums = q.reshape(*q.shape[:2], 8, 32).sum(-1)
    return (
        q.reshape(x.shape),
        d,
        np.concatenate([sixteens, magnitudes_and_sums], -1).astype(np.int16),
    )


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("name", QUANTISED)
def test_every_form_equals_its_twin_bit_for_bit(name: str, n_threads: int) -> None:
    form = FORMS[name]
    n_tokens = 6
    n = 1024 if form.group == 256 else 608
    x = np.random.default_rng(3).standard_normal((n_tokens, n), np.float32)
    x[0, : form.group] = 0.0
    expected = twin(x, name)
    if not form.in_rows:
        expected = interleaved(*expected, TILE_TOKENS, INTERLEAVED_TOKENS)
        x = np.concatenate([x, np.zeros((TILE_TOKENS - n_tokens % TILE_TOKENS, n), np.float32)])
    else:
        if form.offsets is None:
            q = in_rows(expected[0], n)
        else:
            q = in_pairs(expected[0], form)
        expected = q, *(in_rows(column, n, form.group) for column in expected[1:])
    dtype = np.int8 if form.in_rows or form.item_bytes == 1 else np.int16
    actual = [
        np.zeros_like(expected[0], dtype),
        np.zeros_like(expected[1]),
        np.zeros_like(expected[2]),
    ]
    record = words(
        QUANTIZE,
        step=words(STEP, n_tokens=n_tokens),
        x=x,
        n=n,
        q=actual[0],
        d=actual[1],
        sums=actual[2],
    )
    run(f"quantize {name}", record, n_threads)
    for array, expected_array in zip(actual, expected, strict=True):
        assert (array == expected_array).all()


def test_pairs_share_one_register() -> None:
    """Sub-blocks are paired with their neighbours and magnitudes; blocks of 32 are paired four
    apart, with the remainder at the end."""
    q = (np.arange(288) - 144).clip(-127, 127).astype(np.int8)[None]
    thirties = in_pairs(q, FORMS["q8_0 paired"])[0]
    assert (
        thirties[:64] == np.concatenate([q[0, :16], q[0, 128:144], q[0, 16:32], q[0, 144:160]])
    ).all()
    assert thirties.shape == (512,)
    assert (thirties[464:480] == q[0, 256:272]).all()
    assert (thirties[496:] == q[0, 272:]).all()
    assert not thirties[256:464].any()
    pairs = in_pairs(q[:, :256], FORMS["q8_k paired"])[0]
    first = np.concatenate([q[0, :16], q[0, 32:48], q[0, 16:32], q[0, 48:64]])
    assert (pairs[:128] == np.concatenate([first, np.abs(first)])).all()


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.offsets is not None])
def test_pairing_is_reversible(name: str) -> None:
    n_cols = 544 if FORMS[name].group == 32 else 512
    q = np.random.default_rng(0).integers(-127, 128, (3, n_cols), np.int8)
    assert (out_of_pairs(in_pairs(q, FORMS[name]), FORMS[name], q.shape[1]) == q).all()


def test_interleaving_is_reversible() -> None:
    q = np.random.default_rng(0).integers(-127, 128, (7, 608), np.int8)
    d = np.zeros((7, 19), np.float32)
    sums = np.zeros((7, 19), np.int32)
    columns, _, _ = interleaved(q, d, sums, TILE_TOKENS, INTERLEAVED_TOKENS)
    assert (
        deinterleaved(columns, -(-7 // TILE_TOKENS) * TILE_TOKENS, 608, INTERLEAVED_TOKENS)[:7] == q
    ).all()
