"""Sessions that share one model's threads: their next tokens are computed together.

All weights are read once for all tokens of a run, so a second token costs about a third of the
first. A session asks for a decode step and waits; one of the waiting sessions computes the step for
all of them (continuous batching, Yu et al. 2022, "Orca"). Blocks of prompts alternate with decode
steps and with each other, so that a long prompt delays the others by one block only. Results are
bit-identical to those of a session alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.cached_tokens import CachedTokens, common_prefix
from engine.plan.buffers import SMALL_BATCH_TOKENS

if TYPE_CHECKING:
    from engine.pipeline import Logits, Pipeline
    from engine.plan.crew import Crew

    StepResult = Logits | BaseException | None
    """Logits of a decode step, the error that ended it, or None if it was cancelled."""

SHORT_BLOCK = 128
"""Limit on the tokens of a block while other sessions wait for the threads."""
MIN_COPIED_TOKENS = 32
"""Minimum of tokens to copy from another session; fewer are computed."""
PATIENCE = 1.0
"""Time that a decode step waits for sessions that are choosing their next token, as a multiple of a
step. A session that comes too late is not waited for again until it asks by itself."""


class Batch:
    """Queue of one model's sessions for its threads. Any thread may call.

    Args:
        crew: threads of the model.

    Attributes:
        n_steps: number of decode steps.
        n_tokens: number of tokens computed in these steps.
        n_copied: number of prompt tokens copied from another session.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._lock = threading.Condition()
        self._numbers: dict[Pipeline, int] = {}
        """Numbers of the sessions, which give their order in a run."""
        self._tokens: dict[Pipeline, CachedTokens] = {}
        """Tokens in each session's cache."""
        self._running: frozenset[Pipeline] = frozenset()
        """Sessions whose tokens are computed now."""
        self._waiting_blocks: deque[Pipeline] = deque()
        """Sessions that wait to use the threads alone, in order."""
        self._steps: dict[Pipeline, tuple[int, int]] = {}
        """Token and position of each session that waits for a decode step."""
        self._results: dict[Pipeline, StepResult] = {}
        """Results of decode steps that their sessions have not fetched yet."""
        self._writing: set[Pipeline] = set()
        """Sessions that write a reply."""
        self._awaited: set[Pipeline] = set()
        """Sessions that write a reply and were in the last step."""
        self._is_step_due = False
        self._requested_s = 0.0
        """Time of the oldest request for a decode step."""
        self._step_s = 0.0
        """Duration of the last decode step."""
        self.n_steps = 0
        self.n_tokens = 0
        self.n_copied = 0

    def join(self, pipeline: Pipeline, tokens: CachedTokens) -> None:
        """Add a session.

        Args:
            tokens: tokens in its cache, which the session updates.
        """
        with self._lock:
            self._numbers.setdefault(pipeline, max(self._numbers.values(), default=-1) + 1)
            self._tokens[pipeline] = tokens

    def leave(self, pipeline: Pipeline) -> None:
        """Remove a session."""
        with self._lock:
            self._numbers.pop(pipeline, None)
            self._tokens.pop(pipeline, None)
            while self._running:
                self._lock.wait()
            for peer in self._numbers:
                peer.drop_batch_plans()

    @contextmanager
    def writing(self, pipeline: Pipeline) -> Iterator[None]:
        """Mark a session as writing a reply: decode steps of its peers wait a little for its next
        token."""
        with self._lock:
            self._writing.add(pipeline)
            self._awaited.add(pipeline)
        try:
            yield
        finally:
            with self._lock:
                self._writing.discard(pipeline)
                self._awaited.discard(pipeline)
                self._lock.notify_all()

    def has_waiting_peers(self, pipeline: Pipeline) -> bool:
        """Whether other sessions have something to compute."""
        with self._lock:
            active = (*self._writing, *self._waiting_blocks, *self._running)
            return not {pipeline}.issuperset(active)

    @contextmanager
    def use_threads(self, pipeline: Pipeline) -> Iterator[None]:
        """Use the threads alone inside the ``with`` block. Waiting decode steps of other sessions
        run between two such blocks."""
        with self._lock:
            self._waiting_blocks.append(pipeline)
            while (
                self._running
                or self._waiting_blocks[0] is not pipeline
                or (self._is_step_due and self._steps)
            ):
                self._lock.wait()
            self._waiting_blocks.popleft()
            self._start_run([pipeline])
        try:
            yield
        finally:
            self._end_run({}, is_step_due=True)

    def copy_shared(self, pipeline: Pipeline, ids: Sequence[int]) -> int:
        """Copy keys and values of a prompt that another session has computed.

        Args:
            ids: tokens in the session's cache, followed by the tokens to add.

        Returns:
            Number of tokens in the session's cache.
        """
        n_cached = len(self._tokens[pipeline].ids)
        memory = pipeline.memory
        if (
            memory.state_bytes
            or self._longest_match(pipeline, ids)[1] < n_cached + MIN_COPIED_TOKENS
        ):
            return n_cached

        # The other session changes its cache only while it uses the threads.
        with self.use_threads(pipeline):
            peer, n = self._longest_match(pipeline, ids)
            if peer is None or n < n_cached + MIN_COPIED_TOKENS:
                return n_cached
            first = n_cached // 8 * 8
            data = np.empty(memory.copied_bytes(first, n), np.uint8)
            n_bytes = peer.memory.copy_out(first, n, data)
            if memory.resumes_at(n, [(first, n, n_bytes)]) < n:
                return n_cached  # the peer's rings no longer hold the window
            memory.copy_in(first, n, data[:n_bytes])
            memory.commit(n)
            self.n_copied += n - n_cached
            return n

    def _longest_match(self, pipeline: Pipeline, ids: Sequence[int]) -> tuple[Pipeline | None, int]:
        """Return the peer that shares the longest prefix with ``ids``, and its length."""
        matches = (
            (peer, min(common_prefix(tokens.ids, ids), tokens.n_exact))
            for peer, tokens in self._tokens.items()
            if peer is not pipeline
        )
        peer, n = max(matches, key=lambda match: match[1], default=(None, 0))
        return peer, min(n, len(ids) - 1)

    def decode(self, pipeline: Pipeline, token: int, pos: int, n_threads: int) -> Logits | None:
        """Compute a session's next token, together with those of waiting peers.

        Returns:
            Copied logits, (vocab_size,) float32; None if cancelled.

        Raises:
            Exception: any error of the run, in all sessions that took part.
        """
        with self._lock:
            if not self._steps:
                self._requested_s = time.monotonic()
            # Peers that wait need not wake up: if this was the last request, this thread runs the
            # step.
            self._steps[pipeline] = token, pos
            self._awaited |= {pipeline} & self._writing
            while pipeline in self._steps or pipeline in self._running:
                wait_s = self._wait_s()
                if wait_s == 0.0:
                    self._run_step(n_threads)
                else:
                    self._lock.wait(wait_s)
            result = self._results.pop(pipeline)
        if isinstance(result, BaseException):
            raise result
        return result

    def cancel(self, pipeline: Pipeline) -> None:
        """Stop a run that is for this session alone. A run of several sessions ends by itself."""
        with self._lock:
            if self._running == {pipeline}:
                self._crew.cancel()

    def _wait_s(self) -> float | None:
        """Return the time until the decode step may run, in seconds; None if it must wait for an
        event."""
        if self._running or (self._waiting_blocks and not self._is_step_due):
            return None
        if self._awaited <= self._steps.keys():
            return 0.0
        return max(0.0, self._requested_s + PATIENCE * self._step_s - time.monotonic())

    def _run_step(self, n_threads: int) -> None:
        """Compute the requested decode step. The lock is held before and after, not meanwhile."""
        self._awaited &= self._steps.keys()
        pipelines = sorted(self._steps, key=self._numbers.__getitem__)[:SMALL_BATCH_TOKENS]
        steps = {pipeline: self._steps.pop(pipeline) for pipeline in pipelines}
        self.n_steps += 1
        self.n_tokens += len(steps)
        self._start_run(pipelines)
        self._lock.release()
        results: Mapping[Pipeline, StepResult]
        start_s = time.monotonic()
        try:
            results = self._compute_step(steps, n_threads)
        except BaseException as error:
            results = dict.fromkeys(pipelines, error)
        self._lock.acquire()
        self._step_s = time.monotonic() - start_s
        self._end_run(results, is_step_due=False)

    def _compute_step(
        self, steps: Mapping[Pipeline, tuple[int, int]], n_threads: int
    ) -> Mapping[Pipeline, Logits | None]:
        first = next(iter(steps))
        if len(steps) == 1:
            token, pos = steps[first]
            is_finished = first.decode(token, pos, n_threads)
            return {first: first.logits.copy() if is_finished else None}
        name = "batch " + " ".join(str(self._numbers[pipeline]) for pipeline in steps)
        rows = first.decode_batch(name, steps, n_threads)
        if rows is None:
            return dict.fromkeys(steps)
        return dict(zip(steps, rows.copy(), strict=True))

    def _start_run(self, pipelines: list[Pipeline]) -> None:
        self._running = frozenset(pipelines)
        self._crew.clear_cancel()

    def _end_run(self, results: Mapping[Pipeline, StepResult], is_step_due: bool) -> None:
        with self._lock:
            self._running = frozenset()
            self._is_step_due = is_step_due
            self._results |= results
            self._lock.notify_all()
