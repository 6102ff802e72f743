"""Runs a race of thread counts in the engine thread, in a session of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from app.machine.tuning.race import Race, RaceLane
from app.session import model_sampling
from engine.prompt.thinking import ThinkingMode

if TYPE_CHECKING:
    from engine import Model, Session

MOST_TOKENS = 40
MOST_S = 20.0
"""Limit on the seconds that a lane may take."""
REQUEST = "Write one sentence about an old computer."
_LEAST_TOKENS = 12
"""A sentence may end after this many tokens."""
_CONTEXT = 256


class RaceRun:
    """Writes one sentence with each thread count, one after the other.

    Args:
        model: model whose thread counts change; they are restored at the end.
        kv_type: type of the KV cache.
        counts: thread counts, the slowest first.
        clock: monotonic seconds.
    """

    def __init__(
        self, model: Model, kv_type: str, counts: tuple[int, ...], clock: Callable[[], float]
    ) -> None:
        self._model = model
        self._kv_type = kv_type
        self._counts = counts
        self._clock = clock
        self._is_stopped = threading.Event()

    def cancel(self) -> None:
        """End the race after the current token; any thread may call this."""
        self._is_stopped.set()

    def run(self) -> Iterator[Race]:
        """Yield the race before the first lane and after each one.

        Raises EngineError: the session does not fit into memory, or the model is broken.
        """
        model = self._model
        counts = model.threads, model.prefill_threads
        race = Race(self._counts)
        yield race
        chat = model.chat()
        chat.thinking = ThinkingMode(False)
        ids = list(chat.add_user(REQUEST))
        n_ctx = min(len(ids) + _CONTEXT, model.config.context_length)
        with closing(model.session(n_ctx, self._kv_type)) as session:
            try:
                for count in self._counts:
                    if self._is_stopped.is_set():
                        return
                    most_tokens = len(race.lanes[0].texts) if race.lanes else MOST_TOKENS
                    model.set_threads(count, counts[1])
                    session.prefill(ids)
                    lane = self._write(session, count, most_tokens, chat.stops)
                    race = replace(race, lanes=(*race.lanes, lane))
                    yield race
            finally:
                model.set_threads(*counts)

    def _write(
        self, session: Session, count: int, most_tokens: int, stops: tuple[str, ...]
    ) -> RaceLane:
        times_s: list[float] = []
        texts: list[str] = []
        for generated in session.generate(model_sampling.greedy_sampling(), most_tokens, stops):
            times_s.append(self._clock())
            texts.append(generated.text)
            is_sentence = len(texts) >= _LEAST_TOKENS and generated.text.rstrip().endswith(".")
            is_late = times_s[-1] - times_s[0] > MOST_S
            if is_sentence or is_late or self._is_stopped.is_set():
                break
        since_s = times_s[0] if times_s else 0.0
        return RaceLane(count, tuple(time_s - since_s for time_s in times_s), tuple(texts))
