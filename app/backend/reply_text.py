"""Text of the running reply: makes events of the pieces that a model writes, and collects them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.backend.reply import ReplyMeter
from app.conversations.conversation import Ending
from app.reply.parser import ParsedPiece, ReplyParser
from app.reply.thinking import Thinking
from app.session.events import (
    Event,
    PieceGenerated,
    ReplyReopened,
    TextGenerated,
    ThinkingFinished,
    ThoughtGenerated,
    ToolsNotice,
)
from app.text.clean_text import clean_line
from engine.prompt.thinking import opened_by

if TYPE_CHECKING:
    from engine.prompt.tools.split import CallSplitter

TextEvent = TextGenerated | ThoughtGenerated | ThinkingFinished | ReplyReopened


class ReplyEmitter:
    """Emits the events of one reply while the model writes it.

    Args:
        emit: Receives the events.
        meter: Measurements of the reply.
        opening: Last words of the prompt, which may open a thought.
        prefix: Beginning of a continued reply, which is emitted again before the new text. None for
            a new reply.
        earlier_thinking: Thinking in the prefix.
        call_splitter: Splitter that takes tool calls out of the answer. None if the model knows no
            tools.
        emits_pieces: Whether the text is emitted a second time as the model writes it, with its
            tags and without its tool calls.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        meter: ReplyMeter,
        opening: str,
        prefix: str | None = None,
        earlier_thinking: Thinking | None = None,
        call_splitter: CallSplitter | None = None,
        emits_pieces: bool = False,
    ) -> None:
        self._emit = emit
        self._meter = meter
        self._prefix = prefix
        self._earlier_thinking = earlier_thinking or Thinking()
        self._opened = opened_by(opening)
        self._parser = ReplyParser(self._opened, call_splitter, cleans=True)
        self._raw_parser: ReplyParser | None = None
        if emits_pieces:
            raw_splitter = None if call_splitter is None else call_splitter.copy()
            self._raw_parser = ReplyParser(None, raw_splitter, has_thoughts=False)

        self._thinking_event: ThinkingFinished | None = None
        self._is_thinking_finished = False

    def push(self, text: str) -> None:
        """Add text to the reply.

        The prefix is emitted with the first text: a reply that is stopped earlier stays unchanged.
        """
        self._emit_prefix()
        self._emit_parsed(self._parser.feed(text))
        if self._raw_parser is not None:
            # Last, because the reply is saved before it is printed.
            self._emit_raw(self._raw_parser.feed(text))

    def begin_again(self, text: str) -> None:
        """Replace the whole reply by a text, which the next call emits."""
        self._parser = ReplyParser(self._opened, cleans=True)
        self._prefix = text
        self._is_thinking_finished = False

    def finish(self) -> None:
        """Emit the text that was held back, and a notice if a tool call cannot be read."""
        self._emit_prefix()
        self._emit_parsed(self._parser.finish())
        if self._parser.is_thinking:
            self._finish_thinking()

        doubt = self._parser.call_doubt
        if doubt and self._meter.ending is Ending.COMPLETE:
            self._emit(
                ToolsNotice(f"looks like a tool call but is not one: {clean_line(doubt, 160)}")
            )
        if self._raw_parser is not None:
            self._emit_raw(self._raw_parser.finish())

    def _emit_prefix(self) -> None:
        prefix = self._prefix
        self._prefix = None
        if prefix is not None:
            self._emit(ReplyReopened())
            self._emit_parsed(self._parser.feed(prefix))

    def _emit_parsed(self, piece: ParsedPiece) -> None:
        if piece.thought:
            self._emit(ThoughtGenerated(piece.thought))
        if self._parser.has_thought and not self._parser.is_thinking:
            self._finish_thinking()
        if piece.answer:
            self._emit(TextGenerated(piece.answer))

    def _emit_raw(self, piece: ParsedPiece) -> None:
        if piece.answer:
            self._emit(PieceGenerated(piece.answer))

    def _finish_thinking(self) -> None:
        if self._is_thinking_finished:
            return
        self._is_thinking_finished = True

        if self._thinking_event is None:
            tokens = self._earlier_thinking.tokens
            duration_s = self._earlier_thinking.duration_s
            if not self._earlier_thinking.is_closed:
                tokens += self._meter.tokens
                duration_s += self._meter.generating_s
            self._thinking_event = ThinkingFinished(
                tokens, duration_s, is_closed=not self._parser.is_thinking
            )
        self._emit(self._thinking_event)


class ReplyCollector:
    """Text and thinking of a reply so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._thought_pieces: list[str] = []
        self.thinking: Thinking | None = None
        """Thinking of the reply once it is over. None before, or if there is none."""

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._pieces)

    @property
    def thought(self) -> str:
        """The thinking so far."""
        return "".join(self._thought_pieces)

    def take(self, event: TextEvent) -> None:
        """Add the text of an event."""
        match event:
            case TextGenerated():
                self._pieces.append(event.text)
            case ThoughtGenerated():
                self._thought_pieces.append(event.text)
            case ThinkingFinished():
                self.thinking = None
                if self.thought.strip():
                    self.thinking = Thinking(
                        self.thought, event.tokens, event.duration_s, event.is_closed
                    )
            case ReplyReopened():
                self.begin_again()

    def begin_again(self) -> None:
        """Drop everything; a continued reply is emitted again from its beginning."""
        self._pieces.clear()
        self._thought_pieces.clear()
        self.thinking = None
