"""The sampling chain in plain NumPy: every candidate's probability, by sorting everything, as llama.cpp has it."""

import numpy as np

from engine import Sampling

Probabilities = dict[int, float]


def twin(
    logits: np.ndarray, tokens: list[int], sampling: Sampling, breakers: frozenset[int] = frozenset()
) -> Probabilities:
    """Return the probability of each token that may be drawn. ``breakers``: tokens that end repetitions for DRY."""
    s, x = sampling, logits.astype(np.float64)
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
    both = [(1.0, ids)]
    if s.xtc_probability and s.xtc_threshold <= 0.5 and len(ids) > 1:
        n = max(0, int((softmax(x[ids]) >= s.xtc_threshold).sum()) - 1)
        both = [(1.0 - s.xtc_probability, ids), (s.xtc_probability, ids[n:])]
    found: Probabilities = {}
    for share, kept in both:
        p = softmax(x[kept] / s.temperature) if s.temperature else np.eye(len(kept))[0]
        for token, one in zip(kept.tolist(), p.tolist(), strict=True):
            found[token] = found.get(token, 0.0) + share * one
    return {token: one for token, one in found.items() if one > 0.0}


def penalise(x: np.ndarray, recent: list[int], s: Sampling) -> None:
    for token in set(recent):
        x[token] = x[token] / s.repeat_penalty if x[token] > 0 else x[token] * s.repeat_penalty
        x[token] -= recent.count(token) * s.frequency_penalty + s.presence_penalty


def dry(x: np.ndarray, recent: list[int], s: Sampling, breakers: frozenset[int]) -> None:
    """Compare every place with the end, token by token."""
    n = len(recent)
    limit = next((i for i, token in enumerate(reversed(recent)) if token in breakers), n)
    longest: dict[int, int] = {}
    for next_at in range(1, n):
        same = 0
        while same < min(limit, next_at) and recent[next_at - 1 - same] == recent[n - 1 - same]:
            same += 1
        if same >= s.dry_allowed_length <= limit:
            longest[recent[next_at]] = max(same, longest.get(recent[next_at], 0))
    for token, length in longest.items():
        if token not in breakers and n > s.dry_allowed_length:
            x[token] -= s.dry_multiplier * s.dry_base ** (length - s.dry_allowed_length)


def softmax(x: np.ndarray) -> np.ndarray:
    p = np.exp(x - x.max())
    return p / p.sum()


def chi_square(counts: dict[int, int], expected: Probabilities) -> float:
    """Return how far drawn tokens are from what was expected, in standard deviations of the statistic; 3 is much.

    Tokens that are expected fewer than five times are counted together.
    """
    n = sum(counts.values())
    assert counts.keys() <= expected.keys(), sorted(counts.keys() - expected.keys())
    often = [token for token, p in expected.items() if n * p >= 5]
    cells = [(counts.get(token, 0), n * expected[token]) for token in often]
    rest = n - sum(count for count, _ in cells), n - sum(wanted for _, wanted in cells)
    cells += [rest] if rest[1] >= 5 else []
    degrees = len(cells) - 1
    if degrees == 0:
        return 0.0
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in cells)
    # Wilson and Hilferty 1931: its cube root is nearly normal.
    return float(((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / np.sqrt(2 / (9 * degrees)))
