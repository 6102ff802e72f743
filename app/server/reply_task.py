"""Requests and replies between two threads: the engine thread writes events, the event loop reads
them.

Unread events wait in a queue. It holds one reply at most, which the context limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from app.backend.engine_link import Stoppable
from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.server.deadline import Deadline
from app.text.record import record
from engine.errors import Cancelled
from engine.prompt.tools.calls import ToolCall


@record
class TokenChance:
    """A token with its log-probability."""

    text: str
    raw: bytes
    """Bytes of the token, which may end within a character."""
    logprob: float
    top: tuple[TokenChance, ...] = ()
    """The most likely tokens at the same position."""


@record
class PromptAccepted:
    """Event: the prompt is valid. Later errors cannot change the HTTP status."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Number of prompt tokens that are in the cache."""


@record
class ReplyPiece:
    """Event: the reply has more text or calls."""

    answer: str = ""
    thought: str = ""
    chances: tuple[TokenChance, ...] = ()
    """Chances of the tokens in the answer."""
    calls: tuple[ToolCall, ...] = ()

    def joined(self, following: ReplyPiece) -> ReplyPiece:
        """Return this piece and the following one as a single piece."""
        return ReplyPiece(
            self.answer + following.answer,
            self.thought + following.thought,
            self.chances + following.chances,
            self.calls + following.calls,
        )

    def without_end(self, n_chars: int) -> ReplyPiece:
        """Return the piece without its last characters, first of the answer, then of the
        thought."""
        n_answer_chars = min(n_chars, len(self.answer))
        n_thought_chars = n_chars - n_answer_chars
        return ReplyPiece(
            self.answer[: len(self.answer) - n_answer_chars],
            self.thought[: max(0, len(self.thought) - n_thought_chars)],
            self.chances,
            self.calls,
        )


@record
class Finish:
    """Event: the reply is over."""

    reason: str
    """``stop``, ``tool_calls``, ``length`` or ``cancelled``."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Number of prompt tokens that were in the cache."""
    tokens: int = 0
    thought_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    error: ApiError | None = None
    """Error that ended the reply."""
    is_cut: bool = False
    """Whether texts around a gap were cut to fit."""
    stop_string: str = ""
    """Text of the request that ended the reply; "" if none did."""
    n_repeated_chars: int = 0
    """Number of characters at the end that only repeat the text before them; more than 0 if the
    reply was ended because of that."""
    call_doubt: str = ""
    """Reason why text that looks like a call is not one; "" if there is no such text."""


ReplyEvent = PromptAccepted | ReplyPiece | Finish


class ReplyTask:
    """A reply to a request. The engine thread calls all methods except ``cancel``.

    Attributes:
        request: The request, with the prompt of this reply.
        peer: Address of the client.
        index: Index of the reply among those to the request.
        report: Passes an event to the event loop.
        is_waiting: Whether the task waits in the queue.
        is_cancelled: Whether the client has left.
        is_superseded: Whether a newer request of the client makes this reply useless.
    """

    def __init__(
        self,
        request: CompletionRequest,
        peer: str,
        index: int,
        report: Callable[[ReplyEvent], object],
    ) -> None:
        self.request = request
        self.peer = peer
        self.index = index
        self.report = report
        self.is_waiting = True
        self.is_cancelled = False
        self.is_superseded = False
        self._computation: Stoppable | None = None

    def start(self, computation: Stoppable) -> None:
        """Set the computation, which ``cancel`` stops."""
        self._computation = computation
        if self.is_cancelled or self.is_superseded:
            computation.cancel()

    def check(self) -> None:
        """Raise Cancelled if the client has left."""
        if self.is_cancelled:
            raise Cancelled

    def end(self, finish: Finish) -> None:
        """Report the last event."""
        self._computation = None
        self.report(finish)

    def cancel(self) -> None:
        """Stop the computation within a token; any thread may call this."""
        self.is_cancelled = True
        self._stop()

    def supersede(self) -> None:
        """End the reply with what is written; any thread may call this."""
        self.is_superseded = True
        self._stop()

    def _stop(self) -> None:
        computation = self._computation
        if computation is not None:
            computation.cancel()


class PendingRequest:
    """A request whose replies are waited for, as the event loop sees it.

    Args:
        request: The request.
        peer: Address of the client.
        drop: Ends tasks that still run or wait.
    """

    def __init__(
        self, request: CompletionRequest, peer: str, drop: Callable[[Sequence[ReplyTask]], object]
    ) -> None:
        self.request = request
        self._events = EventQueue()
        # A bound method would make a cycle of this object and its tasks, which keeps the request
        # in memory until the garbage collector runs.
        report = partial(_report, asyncio.get_running_loop(), self._events)
        self.tasks = [
            ReplyTask(request.for_reply(index), peer, index, partial(report, index))
            for index in range(request.n_replies)
        ]
        self._drop = drop

    def drop(self) -> None:
        """End all tasks that still run or wait."""
        self._events.close()
        self._drop(self.tasks)

    @property
    def is_waiting(self) -> bool:
        """Whether all tasks wait in the queue."""
        return all(task.is_waiting for task in self.tasks)

    async def next_events(self, patience_s: float | None) -> list[tuple[int, ReplyEvent]]:
        """Wait for events and return them, each with the index of its reply; an empty list if none
        comes in time.

        Neighbouring pieces of the same reply are joined.

        Args:
            patience_s: Limit on the wait; None for no limit.
        """
        events: list[tuple[int, ReplyEvent]] = []
        for index, event in await self._events.take(patience_s):
            joined = None
            if events and events[-1][0] == index:
                joined = _join(events[-1][1], event)
            if joined is None:
                events.append((index, event))
            else:
                events[-1] = (index, joined)
        return events


class EventQueue:
    """Unread events of a request. It belongs to the event loop, and one task reads it."""

    def __init__(self) -> None:
        self._events: list[tuple[int, ReplyEvent]] = []
        self._arrival: asyncio.Future[None] | None = None
        """Future of the task that waits for an event."""
        self._deadline = Deadline(self._wake)

    def put(self, index: int, event: ReplyEvent) -> None:
        """Add an event of a reply."""
        self._events.append((index, event))
        self._wake()

    async def take(self, patience_s: float | None) -> list[tuple[int, ReplyEvent]]:
        """Remove and return all events; wait for the first one if there is none.

        Args:
            patience_s: Limit on the wait; None for no limit.
        """
        if not self._events:
            self._arrival = asyncio.get_running_loop().create_future()
            if patience_s is not None:
                self._deadline.set(patience_s)
            try:
                await self._arrival
            finally:
                self._arrival = None
                self._deadline.clear()
        events = self._events
        self._events = []
        return events

    def close(self) -> None:
        """Stop the timer of the reading task."""
        self._deadline.close()

    def _wake(self) -> None:
        """Continue the task that waits for an event."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


def _report(
    loop: asyncio.AbstractEventLoop, events: EventQueue, index: int, event: ReplyEvent
) -> None:
    with suppress(RuntimeError):  # The loop has ended: no client reads the events.
        loop.call_soon_threadsafe(events.put, index, event)


def _join(first: ReplyEvent, second: ReplyEvent) -> ReplyPiece | None:
    """Return two pieces as one.

    None if one of the events is not a piece, or if a thought follows an answer.
    """
    if not (isinstance(first, ReplyPiece) and isinstance(second, ReplyPiece)):
        return None
    if first.answer and second.thought:
        return None
    return first.joined(second)
