"""Log-probabilities of a token and of the most likely tokens, before any sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one position of a text.

    Attributes:
        chosen: log-probability of the chosen token.
        top: ids and log-probabilities of the most likely tokens, the most likely first; of equally
            likely tokens the lower id.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(
    logits: np.ndarray[Any, np.dtype[np.float32]], token_id: int, n_top: int
) -> TokenLogprobs:
    """Compute log-probabilities in float64.

    Args:
        logits: (vocab_size,) finite float32.
        token_id: the chosen token.
        n_top: number of the most likely tokens, 0 or more.
    """
    logprobs = logits.astype(np.float64)
    logprobs -= logprobs.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    n_top = min(n_top, len(logprobs))
    if not n_top:
        return TokenLogprobs(float(logprobs[token_id]), ())

    # Sort by the logits: different ones may have the same log-probability after rounding. All
    # tokens that are as likely as the last one take part, so that the lower ids win.
    least = np.partition(logits, -n_top)[-n_top]
    candidates = np.flatnonzero(logits >= least)
    top_ids = candidates[np.argsort(-logits[candidates], kind="stable")][:n_top]
    top = tuple((int(token), float(logprobs[token])) for token in top_ids)
    return TokenLogprobs(float(logprobs[token_id]), top)
