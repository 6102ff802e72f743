"""Recurrent layers over a prompt: one token after the other, and as dense products over chunks, in float64.

The engine and its twins compute them in the first way (PERFORMANCE.md says why); the second, which others use, must be
the same.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.reference import Array, delta_net_by_token, mamba_2_by_token

N_TOKENS, N_KEYS, N_VALUES = 150, 16, 24
CHUNKS = 1, 7, 64, 150


def delta_net_by_chunk(
    q: Array, k: Array, v: Array, beta: Array, log_decay: Array, state: Array
) -> tuple[Array, Array]:
    """Of one chunk: what each token adds to the state, by a triangular system of equations."""
    past = np.cumsum(log_decay)
    between = np.exp(np.minimum(past[:, None] - past, 0))
    taken = np.tril(beta[:, None] * between * (k @ k.T), -1) + np.eye(len(v))
    added = np.linalg.solve(taken, beta[:, None] * (v - np.exp(past)[:, None] * (k @ state)))
    out = np.exp(past)[:, None] * (q @ state) + np.tril(between * (q @ k.T)) @ added
    return out, np.exp(past[-1]) * state + (np.exp(past[-1] - past)[:, None] * k).T @ added


def mamba_2_by_chunk(q: Array, k: Array, v: Array, time: Array, log_decay: Array, state: Array) -> tuple[Array, Array]:
    """Of one chunk: what a token adds does not depend on those before."""
    past, added = np.cumsum(log_decay), time[:, None] * v
    between = np.exp(np.minimum(past[:, None] - past, 0))
    out = np.exp(past)[:, None] * (q @ state) + np.tril(between * (q @ k.T)) @ added
    return out, np.exp(past[-1]) * state + (np.exp(past[-1] - past)[:, None] * k).T @ added


FORMS = {
    "delta net": (delta_net_by_token, delta_net_by_chunk),
    "Mamba-2": (mamba_2_by_token, mamba_2_by_chunk),
}


@pytest.mark.parametrize("strongest", [0.01, 3.0, 40.0])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", FORMS)
def test_chunks_compute_what_one_token_after_the_other_does(name: str, chunk: int, strongest: float) -> None:
    rng = np.random.default_rng(2)
    q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in rng.standard_normal((2, N_TOKENS, N_KEYS)))
    v, rate = rng.standard_normal((N_TOKENS, N_VALUES)), rng.uniform(0, 1, N_TOKENS)
    log_decay, state = -rng.uniform(0, strongest, N_TOKENS), rng.standard_normal((N_KEYS, N_VALUES))
    by_token, by_chunk = FORMS[name]
    wanted, last = by_token(q, k, v, rate, log_decay, state)
    parts = []
    for at in range(0, N_TOKENS, chunk):
        part, state = by_chunk(*(x[at : at + chunk] for x in (q, k, v, rate, log_decay)), state)
        parts.append(part)
    assert np.abs(np.vstack(parts) - wanted).max() < 1e-12 * np.abs(wanted).max()
    assert np.abs(state - last).max() < 1e-12 * np.abs(last).max()
