"""Perplexity of a text, and the difference between the predictions of two sessions.

The method is that of llama.cpp's ``llama-perplexity``, so the figures compare. The text is cut into
chunks of one length. Each chunk is read into an empty cache, with the begin-of-text token in place
of its first token if the model has one. The tokens of a chunk's second half count.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import Cancelled
from engine.pipeline import HEAD_TOKENS
from engine.session import Session
from engine.tokenizer import Tokenizer

Row = np.ndarray[Any, np.dtype[np.float32]]
Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class TextScore:
    """Figures of the text read so far.

    Attributes:
        n_tokens: number of tokens that count.
        perplexity: perplexity of the session.
        reference: perplexity of the other session; None if there is none.
        divergence: Kullback-Leibler divergence of the session's predictions from the other's, in
            nats per token.
        same: share of the tokens for which both sessions find the same one most likely.
    """

    n_tokens: int
    perplexity: Estimate
    reference: Estimate | None = None
    divergence: Estimate | None = None
    same: Estimate | None = None


class _Mean:
    """Running mean."""

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
        """Estimate of e to the power of the mean."""
        estimate = self.estimate
        value = math.exp(estimate.value)
        return Estimate(value, value * estimate.error)


def chunks_of(ids: Sequence[int], n_chunk: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Cut the tokens of a text into chunks; an incomplete last chunk is dropped.

    Args:
        ids: tokens of the text, with the begin-of-text token if the model has one.
        n_chunk: tokens of a chunk, at least 8.
    """
    prefix: list[int] = []
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        prefix = [tokenizer.bos_id]
    starts = range(0, len(ids) - n_chunk + 1, n_chunk)
    return [[*prefix, *ids[start + len(prefix) : start + n_chunk]] for start in starts]


def measure(
    session: Session, chunks: Sequence[Sequence[int]], other: Session | None = None
) -> Iterator[TextScore]:
    """Read chunk by chunk and yield the figures after each.

    Args:
        session: session with room for a chunk; its tokens are dropped.
        chunks: chunks from ``chunks_of``.
        other: session to compare with, of a model with the same vocabulary; None for no comparison.

    Raises:
        Cancelled: ``cancel`` was called on a session.
        EngineError: the same errors as ``Session.feed``.
    """
    losses = _Mean()
    reference_losses = _Mean()
    divergence = _Mean()
    agreement = _Mean()
    for chunk in chunks:
        half = len(chunk) // 2
        inputs = chunk[:-1]
        targets = chunk[half + 1 :]
        if other is None:
            for row, target in zip(_rows(session, inputs, half), targets, strict=True):
                losses.add(-float(_log_probabilities(row)[target]))
            yield TextScore(losses.n, losses.exponential)
            continue

        pairs = zip(_rows(session, inputs, half), _rows(other, inputs, half), strict=True)
        for (row, reference_row), target in zip(pairs, targets, strict=True):
            logprobs = _log_probabilities(row)
            reference = _log_probabilities(reference_row)
            losses.add(-float(logprobs[target]))
            reference_losses.add(-float(reference[target]))
            differences = np.exp(reference) * (reference - logprobs)
            divergence.add(float(np.sum(differences, dtype=np.float64)))
            agreement.add(float(logprobs.argmax() == reference.argmax()))
        yield TextScore(
            losses.n,
            losses.exponential,
            reference_losses.exponential,
            divergence.estimate,
            agreement.estimate,
        )


def score(session: Session, ids: Sequence[int], first: int = 0) -> Iterator[Rows]:
    """Append tokens to a session and yield their logits, as fast as a prompt is read.

    The block kernels compute them, so they differ from the logits of ``Session.feed`` by float32
    rounding. Consume the whole iterator.

    Args:
        ids: token ids, at least one, each 0 to ``vocab_size`` - 1.
        first: number of tokens at the beginning whose logits are left out.

    Yields:
        (n, vocab_size) float32, n at most ``engine.pipeline.HEAD_TOKENS``, overwritten by the next
        ones.

    Raises:
        EngineError: the same errors as ``Session.feed``.
    """
    session.forward.start()
    checked = session.check_ids(ids)
    pipeline = session.pipeline
    n_threads = session.model.prefill_threads
    n_done = 0
    while n_done < len(checked):
        end = n_done + pipeline.block_size_at(session.length)
        if n_done < first:
            block = checked[n_done : min(end, first)]
            _append_block(session, block, has_logits=False)
            n_done += len(block)
            continue

        block = checked[n_done:end]
        _append_block(session, block, has_logits=True)
        n_done += len(block)
        for index in range(0, len(block), HEAD_TOKENS):
            logits = pipeline.block_head(index, min(HEAD_TOKENS, len(block) - index), n_threads)
            if logits is None:
                raise Cancelled("stopped")
            if not np.isfinite(logits).all():
                raise session.forward.broken_model()
            yield logits


def _append_block(session: Session, block: list[int], has_logits: bool) -> None:
    n_threads = session.model.prefill_threads

    def compute(pos: int) -> bool:
        if has_logits:
            return session.pipeline.full_block(block, pos, n_threads)
        return session.pipeline.cache_block(block, pos, n_threads, is_small_batch=False)

    session.append_block(block, compute)


def _rows(session: Session, ids: Sequence[int], first: int) -> Iterator[Row]:
    """Yield the logits of each token from ``first`` on, (vocab_size,) float32."""
    session.truncate(0)
    for rows in score(session, ids, first):
        yield from rows


def _log_probabilities(logits: Row) -> Row:
    shifted: Row = logits - logits.max()
    shifted -= np.float32(math.log(np.exp(shifted).sum(dtype=np.float64)))
    return shifted
