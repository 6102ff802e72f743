"""The sampling chain of llama.cpp in plain NumPy: it sorts all candidates and returns their
probabilities."""

from typing import Any

import numpy as np

from engine import Sampling

Probabilities = dict[int, float]


def model_like(n: int, seed: int = 1) -> np.ndarray:
    """Return logits with a few likely tokens and a long tail."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal(n) * 1.5 - 2.0
    logits[random.permutation(n)[:40]] += np.linspace(1.0, 7.0, 40)
    logits[[3, 7, 9, 40]] += [7.0, 6.0, 5.0, 5.5]
    return logits.astype(np.float32)


CHAINS: dict[str, dict[str, Any]] = {
    "colder": {"temperature": 0.4},
    "top-p and min-p": {"top_p": 0.9, "min_p": 0.05, "temperature": 2.0},
    "typical, top-p, min-p": {"typical_p": 0.9, "top_p": 0.8, "min_p": 0.02},
    "top-n-sigma": {"top_n_sigma": 1.5, "temperature": 2.0},
    "top-k": {"top_k": 12},
    "everything": {
        "top_n_sigma": 3.0,
        "top_k": 60,
        "typical_p": 0.97,
        "top_p": 0.95,
        "min_p": 0.01,
        "temperature": 1.3,
    },
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.08},
    "xtc after top-p": {
        "top_p": 0.9,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.05,
        "temperature": 0.8,
    },
    "xtc of nothing": {"xtc_probability": 1.0, "xtc_threshold": 0.6},
    "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "rewards": {"presence_penalty": -1.0, "frequency_penalty": -0.3, "repeat_window": 5},
    "dry": {"dry_multiplier": 1.5},
    "dry, near": {"dry_multiplier": 1.5, "dry_window": 8, "dry_allowed_length": 1, "dry_base": 1.2},
    "logit bias": {"logit_bias": ((3, -2.0), (7, 1.5), (9, -1e9), (9999, 5.0), (3, -0.5))},
}


def twin(
    logits: np.ndarray,
    tokens: list[int],
    sampling: Sampling,
    breakers: frozenset[int] = frozenset(),
) -> Probabilities:
    """Return the probability of each token that may be drawn.

    ``breakers``: tokens that end repetitions for DRY.
    """
    s = sampling
    x = logits.astype(np.float64)
    for token, bias in s.logit_bias:
        if token < len(x):
            x[token] += bias
    penalise(x, tokens[-s.repeat_window :] if s.repeat_window else [], s)
    if s.dry_multiplier:
        dry(x, tokens[-s.dry_window :] if s.dry_window else tokens, s, breakers)
    ids = np.argsort(-x, kind="stable")
    ids = ids[x[ids] > x[ids[0]] - 1e6]
    if s.top_n_sigma:
        ids = ids[x[ids] >= x[ids[0]] - s.top_n_sigma * x[ids].std()]
    if s.top_k:
        ids = ids[: s.top_k]
    if s.typical_p < 1.0:
        p = softmax(x[ids])
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum()
        order = np.argsort(np.abs(-np.log(np.maximum(p, 1e-300)) - entropy), kind="stable")
        n = int((np.cumsum(p[order]) <= s.typical_p).sum()) + 1
        ids = ids[np.sort(order[:n])]
    if s.top_p < 1.0:
        ids = ids[: int((np.cumsum(softmax(x[ids])) < s.top_p).sum()) + 1]
    if s.min_p:
        ids = ids[x[ids] >= x[ids[0]] + np.log(s.min_p)]
    branches = [(1.0, ids)]
    if s.xtc_probability and s.xtc_threshold <= 0.5 and len(ids) > 1:
        n = max(0, int((softmax(x[ids]) >= s.xtc_threshold).sum()) - 1)
        branches = [(1.0 - s.xtc_probability, ids), (s.xtc_probability, ids[n:])]
    probabilities: Probabilities = {}
    for share, candidates in branches:
        if s.temperature:
            p = softmax(x[candidates] / s.temperature)
        else:
            p = np.eye(len(candidates))[0]
        for token, probability in zip(candidates.tolist(), p.tolist(), strict=True):
            probabilities[token] = probabilities.get(token, 0.0) + share * probability
    return {token: probability for token, probability in probabilities.items() if probability > 0.0}


def penalise(x: np.ndarray, recent: list[int], s: Sampling) -> None:
    for token in set(recent):
        if x[token] > 0:
            x[token] /= s.repeat_penalty
        else:
            x[token] *= s.repeat_penalty
        x[token] -= recent.count(token) * s.frequency_penalty + s.presence_penalty


def dry(x: np.ndarray, recent: list[int], s: Sampling, breakers: frozenset[int]) -> None:
    """Compare each position with the end, token by token, and lower the logits of repetitions."""
    n = len(recent)
    limit = next((i for i, token in enumerate(reversed(recent)) if token in breakers), n)
    longest: dict[int, int] = {}
    for next_at in range(1, n):
        n_equal = 0
        while (
            n_equal < min(limit, next_at)
            and recent[next_at - 1 - n_equal] == recent[n - 1 - n_equal]
        ):
            n_equal += 1
        if n_equal >= s.dry_allowed_length <= limit:
            longest[recent[next_at]] = max(n_equal, longest.get(recent[next_at], 0))
    for token, length in longest.items():
        if token not in breakers and n > s.dry_allowed_length:
            x[token] -= s.dry_multiplier * s.dry_base ** (length - s.dry_allowed_length)


def softmax(x: np.ndarray) -> np.ndarray:
    p = np.exp(x - x.max())
    return p / p.sum()


def chi_square(counts: dict[int, int], expected: Probabilities) -> float:
    """Return the deviation of drawn tokens from their expected counts, in standard deviations of
    the statistic; 3 is a large deviation.

    Tokens that are expected fewer than five times are counted together.
    """
    n = sum(counts.values())
    assert counts.keys() <= expected.keys(), sorted(counts.keys() - expected.keys())
    frequent = [token for token, p in expected.items() if n * p >= 5]
    cells = [(counts.get(token, 0), n * expected[token]) for token in frequent]
    remainder = n - sum(count for count, _ in cells), n - sum(n_expected for _, n_expected in cells)
    if remainder[1] >= 5:
        cells.append(remainder)
    degrees = len(cells) - 1
    if degrees == 0:
        return 0.0
    statistic = sum((count - n_expected) ** 2 / n_expected for count, n_expected in cells)
    # Wilson and Hilferty 1931: the cube root of the statistic is nearly normal.
    return float(
        ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / np.sqrt(2 / (9 * degrees))
    )
