"""The forward pass of one session: from token ids to logits, alone or in a batch with peers."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.batch import Batch
from engine.errors import BrokenModelError, Cancelled
from engine.kernels.entries import run_entry
from engine.kernels.records import LOGITS

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.pipeline import Logits, Pipeline
    from engine.plan.crew import Crew
    from engine.tokenizer import Tokenizer
    from engine.vision.known import RowsBlock

SMALL_BATCH_LIMIT = 4
"""Limit on the tokens of one call that use the decode kernels. Up to here these are faster than the
block kernels (PERFORMANCE.md)."""


class ModelProtocol(Protocol):
    """Interface of the opened model that a session computes with."""

    config: ModelConfig
    tokenizer: Tokenizer
    threads: int
    prefill_threads: int

    @property
    def crew(self) -> Crew:
        """Threads that run the plans."""

    @property
    def shown_name(self) -> str:
        """Name of the file, escaped for a one-line message."""

    @property
    def fingerprint(self) -> str:
        """Identifier of the model in saved states, 64 hexadecimal digits."""

    def refuse_changed_file(self) -> None:
        """Raise ``ModelChangedError`` if the file was changed since it was opened."""


class ForwardPass:
    """Computes the tokens of one session.

    A method that raises ``Cancelled`` or ``BrokenModelError`` may leave some layers with more
    tokens than others; the session then rewinds the layers' memory.

    Args:
        pipeline: plans and memory of the session.

    Attributes:
        batch: queue for the model's threads, shared with the peers of the session; None if there
            are no peers.
    """

    def __init__(self, model: ModelProtocol, pipeline: Pipeline) -> None:
        self._model = model
        self.pipeline = pipeline
        self.batch: Batch | None = None
        self._cancelled = threading.Event()

    def start(self) -> None:
        """Start a call of the session: forget an earlier ``cancel`` and check the model file."""
        self._cancelled.clear()
        if self.batch is None:
            self._model.crew.clear_cancel()
        self._model.refuse_changed_file()

    def cancel(self) -> None:
        """Stop the running call. Any thread may call it."""
        self._cancelled.set()
        if self.batch is None:
            self._model.crew.cancel()
        else:
            self.batch.cancel(self.pipeline)

    @property
    def is_cancelled(self) -> bool:
        """Whether ``cancel`` was called since ``start``."""
        return self._cancelled.is_set()

    @property
    def has_waiting_peers(self) -> bool:
        """Whether other sessions wait for the threads."""
        return self.batch is not None and self.batch.has_waiting_peers(self.pipeline)

    def use_threads(self) -> AbstractContextManager[None]:
        """Wait for the model's threads and hold them inside the ``with`` block."""
        if self.batch is None:
            return nullcontext()
        return self.batch.use_threads(self.pipeline)

    def compute_block(
        self, ids: list[int], pos: int, *, every: bool, is_end: bool, is_prompt: bool
    ) -> list[Logits]:
        """Compute one block.

        Args:
            pos: position of the first token.
            every: return the logits of all tokens.
            is_end: return the logits of the last token. Only the last block of a prompt needs them.
            is_prompt: use the block kernels however few the tokens are.

        Returns:
            Logits, each (vocab_size,) float32; empty if neither ``every`` nor ``is_end`` is set.
        """
        if len(ids) == 1 and not is_prompt:
            return [self._decode(ids[0], pos)]
        is_small_batch = len(ids) <= SMALL_BATCH_LIMIT and not is_prompt
        with self.use_threads():
            self.check(is_finished=True)
            if not every:
                return self._compute_last(ids, pos, is_small_batch, is_end)
            if is_small_batch:
                return self._verify(ids, pos)
            return self._compute_every(ids, pos)

    def compute_rows(self, block: RowsBlock, pos: int) -> None:
        """Compute rows of a picture.

        Args:
            pos: index of the first row in the cache.
        """
        with self.use_threads():
            self.check(is_finished=True)
            self.check(self.pipeline.cache_rows(block, pos, self._model.prefill_threads))

    def verify(self, ids: list[int], pos: int) -> list[Logits]:
        """Compute a small batch of tokens and the logits of all of them."""
        with self.use_threads():
            return self._verify(ids, pos)

    def draft(self, token: int, tokens: list[int], n: int) -> list[int]:
        """Return the predictor's guesses of the n tokens after a chosen one.

        Args:
            tokens: tokens in the cache, which the chosen one follows.
        """
        predictor = self.pipeline.predictor
        assert predictor is not None
        following = [token]
        with self.use_threads():
            for _ in range(n):
                logits = self.pipeline.draft(following, tokens, self._model.threads)
                self.check(logits is not None)
                assert logits is not None
                following.append(predictor.token_of(int(logits.argmax())))
        return following[1:]

    def _decode(self, token: int, pos: int) -> Logits:
        n_threads = self._model.threads
        if self.batch is None:
            self.check(is_finished=True)
            self.check(self.pipeline.decode(token, pos, n_threads))
            return self.checked_logits(self.pipeline.logits)

        logits = self.batch.decode(self.pipeline, token, pos, n_threads)
        self.check(logits is not None)
        assert logits is not None
        if not _are_finite(logits):
            raise self.broken_model()
        return logits

    def _verify(self, ids: list[int], pos: int) -> list[Logits]:
        self.check(self.pipeline.verify(ids, pos, self._model.threads))
        return [self.checked_logits(row) for row in self.pipeline.small_batch_logits[: len(ids)]]

    def _compute_every(self, ids: list[int], pos: int) -> list[Logits]:
        n_threads = self._model.prefill_threads
        self.check(self.pipeline.full_block(ids, pos, n_threads))
        rows = []
        for index in range(len(ids)):
            self.check(self.pipeline.head(index, n_threads))
            rows.append(self.checked_logits(self.pipeline.logits))
        return rows

    def _compute_last(
        self, ids: list[int], pos: int, is_small_batch: bool, is_end: bool
    ) -> list[Logits]:
        n_threads = self._model.threads if is_small_batch else self._model.prefill_threads
        self.check(self.pipeline.cache_block(ids, pos, n_threads, is_small_batch))
        if not is_end:
            return []
        self.check(self.pipeline.last_logits(n_threads, is_small_batch))
        return [self.checked_logits(self.pipeline.logits)]

    def check(self, is_finished: bool) -> None:
        """Raise ``Cancelled`` unless a run has finished and nothing was cancelled."""
        if not is_finished or self._cancelled.is_set():
            raise Cancelled("stopped")

    def checked_logits(self, computed: Logits) -> Logits:
        """Return a copy of logits; raises ``BrokenModelError`` if one is NaN or infinite."""
        logits: Logits = np.empty_like(computed)
        words = run_entry("copy logits", LOGITS, logits=computed, n=len(computed), out=logits)
        if not words[LOGITS.result // 8]:
            raise self.broken_model()
        return logits

    def broken_model(self) -> BrokenModelError:
        """Return the error for a model that computes NaN or infinity."""
        return BrokenModelError(
            f"{self._model.shown_name}: the model computed NaN or infinity: its weights are "
            f"damaged (download it again)"
        )


def _are_finite(logits: Logits) -> bool:
    """Return whether all logits are finite."""
    words = run_entry("largest logit", LOGITS, logits=logits, n=len(logits))
    return bool(words[LOGITS.result // 8] >= 0)
