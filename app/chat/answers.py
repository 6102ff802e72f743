"""Several replies to one prompt, computed together: the first in the engine's thread, each other in one of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from app.chat.events import AnswerTold, Event, GenerationFailed, reason_of
from app.chat.wire import Stoppable
from app.text.record import record
from engine.errors import MemoryPlanError

if TYPE_CHECKING:
    from engine import Model, Session

_LOOK_S = 0.1


@record
class AnswerLane:
    """What computes one of several replies."""

    at: int
    """From 0 on."""
    session: Any


@contextmanager
def lanes_of(model: Model, session: Session, n: int) -> Iterator[tuple[list[AnswerLane], str]]:
    """Have n lanes, the first with this session, or as many as memory has room for; and why they are fewer."""
    lanes, trouble = [AnswerLane(0, session)], ""
    try:
        while len(lanes) < n and not trouble:
            try:
                lanes.append(AnswerLane(len(lanes), model.session(peer=session)))
            except MemoryPlanError as error:
                trouble = str(error)
        yield lanes, trouble
    finally:
        for lane in lanes[1:]:
            lane.session.close()


class AnswerTurn(Protocol):
    """One of the replies."""

    at: int

    @property
    def reply(self) -> Stoppable:
        """What is stopped."""

    def run(self) -> bool:
        """Answer; True when there is a reply."""


class Answers:
    """Writes them. The others begin when the first has read the prompt, which they copy.

    Args:
        emit: tells events of the answers; any thread of them may call.
        between: called by the engine's thread while it waits for the others.
    """

    def __init__(
        self, turns: Sequence[AnswerTurn], emit: Callable[[Event], object], between: Callable[[], object]
    ) -> None:
        self._turns, self._emit, self._between = turns, emit, between
        self._kept: set[int] = set()
        self._threads = [
            threading.Thread(target=self._run, args=(turn,), name=f"jalopy-answer-{turn.at}", daemon=True)
            for turn in turns[1:]
        ]

    def begin_others(self) -> None:
        """The prompt is read."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def cancel(self) -> None:
        """Stop all; what is there stays."""
        for turn in self._turns:
            turn.reply.cancel()

    def run(self) -> bool:
        """Answer; True when there is a reply. Raises whatever the first does before it has a token."""
        if self._turns[0].run():
            self._kept.add(0)
        self.begin_others()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                self._between()
        return bool(self._kept)

    def _run(self, turn: AnswerTurn) -> None:
        try:
            if turn.run():
                self._kept.add(turn.at)
        except BaseException as error:  # it is one answer less
            self._emit(AnswerTold(turn.at, GenerationFailed(reason_of(error), error=error)))
