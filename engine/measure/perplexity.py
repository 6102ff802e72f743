"""Perplexity of a text, and how far the predictions of one session are from another's.

The method is that of llama.cpp's ``llama-perplexity``, so that figures compare: the text in chunks
of one length, each read into an empty cache, with the begin-of-text token in place of its first
where the model wants one. The tokens of a chunk's second half count, each with at least half a
chunk before it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.session import Session
from engine.tokenizer import Tokenizer

Row = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Estimate:
    """A figure and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class TextScore:
    """What is known of the text so far.

    Attributes:
        n_tokens: that counted.
        perplexity: of the session.
        reference: perplexity of the other session; None without one.
        divergence: Kullback-Leibler divergence of the session's predictions from the other's, in
            nats a token.
        same: share of the tokens for which both hold the same one likeliest.
    """

    n_tokens: int
    perplexity: Estimate
    reference: Estimate | None = None
    divergence: Estimate | None = None
    same: Estimate | None = None


class _Mean:
    """A mean that grows."""

    def __init__(self) -> None:
        self.n = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        self.n += 1
        self._sum += value
        self._squares += value * value

    @property
    def estimate(self) -> Estimate:
        mean = self._sum / self.n
        variance = max(0.0, self._squares / self.n - mean * mean)
        return Estimate(mean, math.sqrt(variance / max(1, self.n - 1)))

    @property
    def exponential(self) -> Estimate:
        """Of e to the mean."""
        found = self.estimate
        value = math.exp(found.value)
        return Estimate(value, value * found.error)


def chunks_of(ids: Sequence[int], n_chunk: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Cut a text's tokens into chunks; what is left at its end is dropped.

    Args:
        ids: of the text, with the begin-of-text token where the model wants one.
        n_chunk: tokens of a chunk, at least 8.
    """
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        first = [tokenizer.bos_id]
    else:
        first = []
    starts = range(0, len(ids) - n_chunk + 1, n_chunk)
    return [[*first, *ids[at + len(first) : at + n_chunk]] for at in starts]


def measure(
    session: Session, chunks: Sequence[Sequence[int]], other: Session | None = None
) -> Iterator[TextScore]:
    """Read chunk by chunk and yield what is known after each.

    Args:
        session: with room for a chunk; its tokens are dropped.
        chunks: as ``chunks_of`` makes them.
        other: what is compared with, of a model with the same vocabulary.

    Raises:
        Cancelled: ``cancel`` was called on a session.
        EngineError: the same errors as ``Session.feed``.
    """
    losses = _Mean()
    losses_of_other = _Mean()
    divergence = _Mean()
    same = _Mean()
    for chunk in chunks:
        half = len(chunk) // 2
        targets = chunk[half + 1 :]
        if other is None:
            for row, target in zip(_rows(session, chunk[:-1], half), targets, strict=True):
                losses.add(-float(_log_probabilities(row)[target]))
            yield TextScore(losses.n, losses.exponential)
            continue
        both = zip(_rows(session, chunk[:-1], half), _rows(other, chunk[:-1], half), strict=True)
        for (row, row_of_other), target in zip(both, targets, strict=True):
            found = _log_probabilities(row)
            wanted = _log_probabilities(row_of_other)
            losses.add(-float(found[target]))
            losses_of_other.add(-float(wanted[target]))
            divergence.add(float(np.sum(np.exp(wanted) * (wanted - found), dtype=np.float64)))
            same.add(float(found.argmax() == wanted.argmax()))
        yield TextScore(
            losses.n, losses.exponential, losses_of_other.exponential, divergence.estimate,
            same.estimate
        )  # fmt: skip


def _rows(session: Session, ids: Sequence[int], first: int) -> Iterator[Row]:
    """Yield the logits of each token from ``first`` on, (vocab_size,) float32."""
    session.truncate(0)
    for rows in session.score(ids, first):
        yield from rows


def _log_probabilities(logits: Row) -> Row:
    shifted: Row = logits - logits.max()
    shifted -= np.float32(math.log(np.exp(shifted).sum(dtype=np.float64)))
    return shifted
