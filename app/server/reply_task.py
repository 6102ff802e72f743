"""A request for text while it is answered: the engine's thread writes what comes, the event loop
reads it.

What no one reads yet waits here; it is never more than one reply, which the context bounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from app.backend.engine_outbox import Stoppable
from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.text.record import record
from engine.errors import Cancelled
from engine.prompt.tools.calls import ToolCall


@record
class TokenChance:
    """A token with its log-probability."""

    text: str
    raw: bytes
    """Its bytes, of which the text may be a part of a character."""
    logprob: float
    top: tuple[TokenChance, ...] = ()
    """The likeliest tokens at its place."""


@record
class PromptTaken:
    """The prompt was taken; an error can come no more as an HTTP status."""


@record
class ReplyPiece:
    """More of the reply."""

    answer: str = ""
    thought: str = ""
    chances: tuple[TokenChance, ...] = ()
    calls: tuple[ToolCall, ...] = ()

    def joined(self, other: ReplyPiece) -> ReplyPiece:
        """Return this and what follows it as one."""
        text = self.answer + other.answer, self.thought + other.thought
        return ReplyPiece(*text, self.chances + other.chances, self.calls + other.calls)

    def without_end(self, n_chars: int) -> ReplyPiece:
        """Return this without its last characters: of the answer, and of the thought where that is
        shorter."""
        n_answer = min(n_chars, len(self.answer))
        answer = self.answer[: len(self.answer) - n_answer]
        n_thought = n_chars - n_answer
        return ReplyPiece(
            answer, self.thought[: max(0, len(self.thought) - n_thought)], self.chances, self.calls
        )


@record
class Finish:
    """The reply is over."""

    reason: str
    """``stop``, ``tool_calls``, ``length`` or ``cancelled``."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt that the cache held already."""
    tokens: int = 0
    thought_tokens: int = 0
    read_s: float = 0.0
    write_s: float = 0.0
    error: ApiError | None = None
    """Why it broke off."""
    n_repeated_chars: int = 0
    """Characters of the end that only repeat what is before them; more than 0 where the reply was
    ended for it."""
    call_doubt: str = ""
    """Why what looks like a call is none; "" where nothing does."""


Happening = PromptTaken | ReplyPiece | Finish


class Job:
    """Answer to a request. The engine's thread calls all but ``cancel``.

    Attributes:
        is_waiting: whether it waits for its turn.
    """

    def __init__(
        self, order: CompletionRequest, peer: str, index: int, tell: Callable[[Happening], object]
    ) -> None:
        self.order = order
        self.peer = peer
        self.index = index
        self.tell = tell
        self._running: Stoppable | None = None
        self.is_cancelled = False
        self.is_waiting = True

    def start(self, running: Stoppable) -> None:
        """Say what computes, so that it can be ended."""
        self._running = running
        if self.is_cancelled:
            running.cancel()

    def check(self) -> None:
        """Look whether anybody still waits for it. Raises Cancelled: no one does."""
        if self.is_cancelled:
            raise Cancelled

    def end(self, ended: Finish) -> None:
        """Nothing follows."""
        self._running = None
        self.tell(ended)

    def cancel(self) -> None:
        """The client has left: the computation ends within a token."""
        self.is_cancelled = True
        running = self._running
        if running is not None:
            running.cancel()


class PendingRequest:
    """The answers to one request, for its reader in the event loop; ``drop``: ends what still runs
    or waits of them."""

    def __init__(
        self, order: CompletionRequest, peer: str, drop: Callable[[Sequence[Job]], object]
    ) -> None:
        self.order = order
        self._came: asyncio.Queue[tuple[int, Happening]] = asyncio.Queue()
        # Not a method: jobs that point to this object would keep both until the garbage collector
        # comes by.
        note = partial(_note, asyncio.get_running_loop(), self._came)
        self.jobs = [
            Job(order.of_reply(at), peer, at, partial(note, at)) for at in range(order.n_replies)
        ]
        self.drop = partial(drop, self.jobs)

    @property
    def is_waiting(self) -> bool:
        """Whether all answers wait for their turn."""
        return all(job.is_waiting for job in self.jobs)

    async def next(self) -> list[tuple[int, Happening]]:
        """Wait for what comes next, each with its answer's index; neighbouring pieces of one answer
        become one."""
        found = [await self._came.get()]
        while not self._came.empty():
            at, one = self._came.get_nowait()
            if at == found[-1][0]:
                joined = _joined(found[-1][1], one)
            else:
                joined = None
            if joined is None:
                found.append((at, one))
            else:
                found[-1] = at, joined
        return found


def _note(
    loop: asyncio.AbstractEventLoop,
    came: asyncio.Queue[tuple[int, Happening]],
    index: int,
    happening: Happening,
) -> None:
    with suppress(RuntimeError):  # the loop has ended: no one reads any more
        loop.call_soon_threadsafe(came.put_nowait, (index, happening))


def _joined(last: Happening, one: Happening) -> ReplyPiece | None:
    """Return two pieces as one; None where they are none, or a thought comes after an answer."""
    if (
        isinstance(last, ReplyPiece)
        and isinstance(one, ReplyPiece)
        and not (last.answer and one.thought)
    ):
        return last.joined(one)
    return None
