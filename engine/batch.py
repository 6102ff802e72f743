"""Sessions of one model in threads of their own: their next tokens are computed in one walk, each
to the bit as alone.

A matrix is read once for all tokens of a walk, so that a second one costs a third of the first. A
session asks for a step and waits; one of those that wait takes it for all (continuous batching, Yu
et al. 2022, "Orca"). Blocks of prompts take turns with these steps and with each other, so that no
one waits for another's long prompt.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.cached_tokens import common_prefix
from engine.plan.buffers import SMALL_BATCH_TOKENS

if TYPE_CHECKING:
    from engine.pipeline import Logits, Pipeline
    from engine.plan.crew import Crew

SHORT_BLOCK = 128
"""Limit on a block of tokens while others wait for the threads: they wait as long as it takes."""
LEAST_COPIED = 32
"""Tokens that are worth a copy; fewer are computed."""
PATIENCE = 1.0
"""How long a step waits for sessions that choose their next token, in steps: those it leaves need
another one. Who came too late is not waited for again before it asks: so what holds up one costs
the others this once."""


class Batch:
    """The line of one model's sessions for its threads. Any thread may call.

    Args:
        crew: which one of them has at a time.

    Attributes:
        n_steps, n_tokens: walks that computed next tokens, and the tokens that these computed.
        n_copied: tokens of prompts that were copied from another session.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._lock = threading.Condition()
        self._numbers: dict[Pipeline, int] = {}
        """Of the sessions, in the order in which a walk has them."""
        self._tokens: dict[Pipeline, list[int]] = {}
        """What each of them holds."""
        self._walking: frozenset[Pipeline] = frozenset()
        """Whose tokens are computed now."""
        self._blocks: deque[Pipeline] = deque()
        """Those that wait for a turn of their own, in order."""
        self._steps: dict[Pipeline, tuple[int, int]] = {}
        """Token and position of those that wait for a step."""
        self._found: dict[Pipeline, Logits | BaseException | None] = {}
        """The logits of a step, for who asked for it; None where it was cancelled, or what went
        wrong."""
        self._writing: set[Pipeline] = set()
        self._awaited: set[Pipeline] = set()
        """Those that write and were in the last step."""
        self._is_step_due = False
        self._asked_s = self._step_s = 0.0
        self.n_steps = self.n_tokens = self.n_copied = 0

    def join(self, one: Pipeline, tokens: list[int]) -> None:
        """Let a session compute with the others; ``tokens`` are those that it holds, now and
        later."""
        with self._lock:
            self._numbers.setdefault(one, max(self._numbers.values(), default=-1) + 1)
            self._tokens[one] = tokens

    def leave(self, one: Pipeline) -> None:
        """Forget a session that ends."""
        with self._lock:
            self._numbers.pop(one, None)
            self._tokens.pop(one, None)
            while self._walking:
                self._lock.wait()
            for other in self._numbers:
                other.forget_together()

    @contextmanager
    def writing(self, one: Pipeline) -> Iterator[None]:
        """Steps of others wait for this one meanwhile, shortly: it will ask for its next token."""
        with self._lock:
            self._writing.add(one)
            self._awaited.add(one)
        try:
            yield
        finally:
            with self._lock:
                self._writing.discard(one)
                self._awaited.discard(one)
                self._lock.notify_all()

    def others_wait(self, one: Pipeline) -> bool:
        """Whether other sessions have something to compute."""
        with self._lock:
            return not {one}.issuperset((*self._writing, *self._blocks, *self._walking))

    @contextmanager
    def turn(self, one: Pipeline) -> Iterator[None]:
        """Have the threads alone; a step of others comes between two turns."""
        with self._lock:
            self._blocks.append(one)
            while (
                self._walking or self._blocks[0] is not one or (self._is_step_due and self._steps)
            ):
                self._lock.wait()
            self._blocks.popleft()
            self._begin([one])
        try:
            yield
        finally:
            self._end({}, is_step_due=True)

    def copy_shared(self, one: Pipeline, ids: Sequence[int]) -> int:
        """Copy what another session holds of a prompt, which then need not be computed.

        Args:
            ids: what ``one`` holds, and what it is to hold.

        Returns:
            Number of tokens that ``one`` holds then.
        """
        n_held = len(self._tokens[one])
        memory = one.memory
        if memory.state_bytes or self._most_shared(one, ids)[1] < n_held + LEAST_COPIED:
            return n_held
        with self.turn(one):  # what others hold changes in their own turns
            other, n = self._most_shared(one, ids)
            first = n_held // 8 * 8
            if other is None or n < n_held + LEAST_COPIED:
                return n_held
            data = np.empty(memory.copied_bytes(first, n), np.uint8)
            n_bytes = other.memory.copy_out(first, n, data)
            if memory.resumes_at(n, [(first, n, n_bytes)]) < n:  # a window that it has left already
                return n_held
            memory.copy_in(first, n, data[:n_bytes])
            memory.reach(n)
            self.n_copied += n - n_held
            return n

    def _most_shared(self, one: Pipeline, ids: Sequence[int]) -> tuple[Pipeline | None, int]:
        found = (
            (other, common_prefix(tokens, ids))
            for other, tokens in self._tokens.items()
            if other is not one
        )
        other, n = max(found, key=lambda pair: pair[1], default=(None, 0))
        return other, min(n, len(ids) - 1)

    def step(self, one: Pipeline, token: int, pos: int, n_threads: int) -> Logits | None:
        """Compute a session's next token, together with those that others ask for.

        Returns:
            Its logits, (vocab_size,) float32; None if it was cancelled.

        Raises:
            Exception: whatever a walk raises, in all sessions that were in it.
        """
        with self._lock:
            if not self._steps:
                self._asked_s = time.monotonic()
            self._steps[one] = token, pos
            self._awaited |= {one} & self._writing
            self._lock.notify_all()
            while one in self._steps or one in self._walking:
                wait_s = self._wait_s()
                if wait_s == 0.0:
                    self._take_step(n_threads)
                else:
                    self._lock.wait(wait_s)
            found = self._found.pop(one)
        if isinstance(found, BaseException):
            raise found
        return found

    def cancel(self, one: Pipeline) -> None:
        """Stop a walk that computes nothing of others; who is in a walk of several ends after
        it."""
        with self._lock:
            if self._walking == {one}:
                self._crew.cancel()

    def _wait_s(self) -> float | None:
        """Return how long to wait before the step that is asked for may be taken; None for until
        something happens."""
        if self._walking or (self._blocks and not self._is_step_due):
            return None
        if self._awaited <= self._steps.keys():
            return 0.0
        return max(0.0, self._asked_s + PATIENCE * self._step_s - time.monotonic())

    def _take_step(self, n_threads: int) -> None:
        """Compute what is asked for, holding the lock before and after."""
        self._awaited &= self._steps.keys()
        asked = sorted(self._steps, key=self._numbers.__getitem__)[:SMALL_BATCH_TOKENS]
        steps = {one: self._steps.pop(one) for one in asked}
        self.n_steps = self.n_steps + 1
        self.n_tokens = self.n_tokens + len(asked)
        self._begin(asked)
        self._lock.release()
        found: Mapping[Pipeline, Logits | BaseException | None]
        begun_s = time.monotonic()
        try:
            found = self._computed(steps, n_threads)
        except BaseException as error:
            found = dict.fromkeys(asked, error)
        self._lock.acquire()
        self._step_s = time.monotonic() - begun_s
        self._end(found, is_step_due=False)

    def _computed(
        self, steps: Mapping[Pipeline, tuple[int, int]], n_threads: int
    ) -> Mapping[Pipeline, Logits | None]:
        first = next(iter(steps))
        if len(steps) == 1:
            return {first: first.logits.copy() if first.decode(*steps[first], n_threads) else None}
        name = "together " + " ".join(str(self._numbers[one]) for one in steps)
        rows = first.decode_together(name, steps, n_threads)
        if rows is None:
            return dict.fromkeys(steps)
        return dict(zip(steps, rows.copy(), strict=True))

    def _begin(self, walking: list[Pipeline]) -> None:
        self._walking = frozenset(walking)
        self._crew.clear_cancel()

    def _end(
        self, found: Mapping[Pipeline, Logits | BaseException | None], is_step_due: bool
    ) -> None:
        with self._lock:
            self._walking = frozenset()
            self._is_step_due = is_step_due
            self._found |= found
            self._lock.notify_all()
