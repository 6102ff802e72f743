"""Text of the running reply: from pieces to events, cleaned, with thinking told apart; and as far
as it has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.backend.reply import ReplyMeter
from app.conversations.conversation import Ending
from app.reply.thinking import Thinking, ThinkingSplitter, ThoughtSplit
from app.session.events import (
    Event,
    PieceGenerated,
    ReplyReopened,
    TextGenerated,
    ThinkingFinished,
    ThoughtGenerated,
    ToolsTold,
)
from app.text.clean_text import TextCleaner, clean_line
from engine.prompt.thought_markers import opened_by

if TYPE_CHECKING:
    from engine.prompt.tools.split import CallSplitter

TextEvent = TextGenerated | ThoughtGenerated | ThinkingFinished | ReplyReopened


class ReplyText:
    """One reply's text as it is told.

    Args:
        opening: the last words of the prompt, which may open a thinking block.
        begun: the beginning of a reply that is continued, which comes again before what is new;
            None for a new one.
        earlier: what was thought in it.
        calls: takes calls of tools out of the answer; None where the model knows no tools.
        tells_pieces: whether every piece is told too as the model wrote it, but for its calls.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        meter: ReplyMeter,
        opening: str,
        begun: str | None = None,
        earlier: Thinking | None = None,
        calls: CallSplitter | None = None,
        tells_pieces: bool = False,
    ) -> None:
        self._tells_pieces = tells_pieces
        self._calls_of_pieces = calls.fresh() if calls is not None and tells_pieces else None
        self._emit = emit
        self._meter = meter
        self._earlier = earlier or Thinking()
        self._calls = calls
        self._answer = TextCleaner()
        self._thought = TextCleaner()
        self._opened = opened_by(opening)
        self._splitter = ThinkingSplitter(self._opened)
        self._told: ThinkingFinished | None = None
        self._begun = begun
        self._is_finished = False

    def push(self, text: str) -> None:
        """Take the next piece; only now a reply is reopened: one that is stopped before it stays as
        it was."""
        self._reopen()
        self._show(self._splitter.push(text))
        self._tell_piece(text)  # last: it is saved before it is shown

    def _tell_piece(self, piece: str, is_last: bool = False) -> None:
        if self._calls_of_pieces is not None:
            piece = self._calls_of_pieces.push(piece).text + (
                self._calls_of_pieces.flush().text if is_last else ""
            )
        if self._tells_pieces and piece:
            self._emit(PieceGenerated(piece))

    def begin_again(self, text: str) -> None:
        """The whole reply is this text, in place of what was told."""
        self._answer = TextCleaner()
        self._thought = TextCleaner()
        self._calls = None
        self._splitter = ThinkingSplitter(self._opened)
        self._begun = text
        self._is_finished = False

    def finish(self) -> None:
        """The reply has ended: show what was held back, and why what looks like a call is none."""
        self._reopen()
        self._show(self._splitter.flush(), is_last=True)
        if self._splitter.is_thinking:
            self._finish_thinking()
        if self._calls is not None and self._calls.doubt and self._meter.ending is Ending.COMPLETE:
            self._emit(
                ToolsTold(
                    f"looks like a call of a tool and is none: {clean_line(self._calls.doubt, 160)}"
                )
            )
        self._tell_piece("", is_last=True)

    def _reopen(self) -> None:
        begun = self._begun
        self._begun = None
        if begun is not None:
            self._emit(ReplyReopened())
            self._show(self._splitter.push(begun))

    def _show(self, split: ThoughtSplit, is_last: bool = False) -> None:
        if thought := _cleaned(self._thought, split.thought, is_last):
            self._emit(ThoughtGenerated(thought))
        if self._splitter.has_block and not self._splitter.is_thinking:
            self._finish_thinking()
        answer = split.answer
        if self._calls is not None:
            answer = self._calls.push(answer).text + (self._calls.flush().text if is_last else "")
        if answer := _cleaned(self._answer, answer, is_last):
            self._emit(TextGenerated(answer))

    def _finish_thinking(self) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        if self._told is not None:
            self._emit(self._told)
            return
        tokens = self._earlier.tokens
        duration_s = self._earlier.duration_s
        if not self._earlier.is_closed:
            tokens += self._meter.tokens
            duration_s += self._meter.generating_s
        self._told = ThinkingFinished(tokens, duration_s, not self._splitter.is_thinking)
        self._emit(self._told)


def _cleaned(cleaner: TextCleaner, text: str, is_last: bool) -> str:
    return cleaner.push(text) + (cleaner.flush() if is_last else "")


class GrowingReply:
    """Text that only grows, until it begins again.

    ``thinking``: once it is over; None where there is none.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._thought_pieces: list[str] = []
        self.thinking: Thinking | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._pieces)

    @property
    def thought(self) -> str:
        """The thinking so far."""
        return "".join(self._thought_pieces)

    def take(self, event: TextEvent) -> None:
        """Grow by what the engine's thread reports."""
        if isinstance(event, TextGenerated):
            self._pieces.append(event.text)
        elif isinstance(event, ThoughtGenerated):
            self._thought_pieces.append(event.text)
        elif isinstance(event, ThinkingFinished):
            thought = Thinking(self.thought, event.tokens, event.duration_s, event.is_closed)
            if thought.text.strip():
                self.thinking = thought
            else:
                self.thinking = None
        else:
            self.begin_again()

    def begin_again(self) -> None:
        """Nothing has come; a reply that goes on comes again from its beginning."""
        self._pieces.clear()
        self._thought_pieces.clear()
        self.thinking = None
