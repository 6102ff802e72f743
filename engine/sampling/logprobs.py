"""Log-probabilities of a token and of the likeliest ones, from a model's logits as they are: before
any sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one place of a text; all of the vocabulary add up to
    1.

    Attributes:
        chosen: of the token that was chosen.
        top: the likeliest token ids with theirs, the likeliest first; of equals the lower id.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(
    logits: np.ndarray[Any, np.dtype[np.float32]], token_id: int, n_top: int
) -> TokenLogprobs:
    """Compute them in float64, so that they are exact to the last bits of the logits.

    Args:
        logits: (vocab_size,) finite float32.
        token_id: the token that was chosen.
        n_top: number of the likeliest tokens, from 0 on.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    n_top = min(n_top, len(wide))
    if not n_top:
        return TokenLogprobs(float(wide[token_id]), ())
    # By the logits themselves: their difference to the largest may round to the same.
    least = np.partition(logits, -n_top)[-n_top]
    candidates = np.flatnonzero(
        logits >= least
    )  # all equals of the last, so that which of them stay does not vary
    likeliest = candidates[np.argsort(-logits[candidates], kind="stable")][:n_top]
    return TokenLogprobs(
        float(wide[token_id]), tuple((int(one), float(wide[one])) for one in likeliest)
    )
