"""Parser of a reply: separates thoughts, text and tool calls while the model writes.

The server, the chat and replies of remote servers all use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.reply.thinking import ThinkingSplitter, ThoughtSplit
from app.text.clean_text import TextCleaner
from app.text.record import record
from engine.prompt.thinking import ThoughtMarker
from engine.prompt.tools.calls import ToolCall

if TYPE_CHECKING:
    from engine.prompt.tools.split import CallSplitter  # imports a tokenizer


@record
class ParsedPiece:
    """Text and calls that the parser releases together."""

    thought: str = ""
    answer: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Calls that are complete."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.thought or self.answer or self.calls)


class ReplyParser:
    """Separates thoughts, text and tool calls in the stream of a reply.

    The joined pieces are the same, however the stream is split. Text that may be the beginning of a
    tag or of a call is held back until more text decides it.

    Args:
        opened: Marker of a thought that the prompt has opened, or None.
        call_splitter: Splitter for the model's call format, or None if calls are plain text.
        has_thoughts: Whether tags of thoughts are recognized; otherwise they are plain text.
        cleans: Whether control characters are replaced, as ``clean_text`` does.
        prefix: Beginning of the reply, which was written before. Its thought is followed, and the
            pieces do not repeat it.
    """

    def __init__(
        self,
        opened: ThoughtMarker | None = None,
        call_splitter: CallSplitter | None = None,
        *,
        has_thoughts: bool = True,
        cleans: bool = False,
        prefix: str = "",
    ) -> None:
        self._call_splitter = call_splitter
        self._thinking: ThinkingSplitter | None = None
        self._thought_cleaner: TextCleaner | None = None
        self._text_cleaner: TextCleaner | None = None

        if has_thoughts:
            self._thinking = ThinkingSplitter(opened)
            self._thinking.push(prefix)
        if cleans:
            self._thought_cleaner = TextCleaner()
            self._text_cleaner = TextCleaner()

    @property
    def is_thinking(self) -> bool:
        """Whether the reply so far ends inside a thought, or where another thought may follow."""
        return self._thinking is not None and self._thinking.is_thinking

    @property
    def has_thought(self) -> bool:
        """Whether the reply has a thought, open or closed."""
        return self._thinking is not None and self._thinking.has_block

    @property
    def call_doubt(self) -> str:
        """Reason why text that looks like a call is not one; "" if there is no such text."""
        if self._call_splitter is None:
            return ""
        return self._call_splitter.doubt

    @property
    def call_chars(self) -> int:
        """Number of characters from the first call to the end of the reply; 0 without a call."""
        if self._call_splitter is None or not self._call_splitter.calls:
            return 0
        return self._call_splitter.tail_chars

    def feed(self, text: str) -> ParsedPiece:
        """Add text to the reply and return what it completes."""
        if self._thinking is None:
            split = ThoughtSplit(answer=text)
        else:
            split = self._thinking.push(text)

        answer = split.answer
        calls: tuple[ToolCall, ...] = ()
        if self._call_splitter is not None:
            result = self._call_splitter.push(answer)
            answer = result.text
            calls = result.calls

        return ParsedPiece(
            _clean(self._thought_cleaner, split.thought), _clean(self._text_cleaner, answer), calls
        )

    def finish(self, is_cut: bool = False) -> ParsedPiece:
        """Return what was held back; the reply is over.

        Args:
            is_cut: Whether a limit ended the reply; a call without its end is then text.
        """
        if self._thinking is None:
            split = ThoughtSplit()
        else:
            split = self._thinking.flush()

        answer = split.answer
        calls: tuple[ToolCall, ...] = ()
        if self._call_splitter is not None:
            result = self._call_splitter.push(answer)
            rest = self._call_splitter.flush(is_cut)
            answer = result.text + rest.text
            calls = result.calls + rest.calls

        thought = _clean(self._thought_cleaner, split.thought) + _flush(self._thought_cleaner)
        answer = _clean(self._text_cleaner, answer) + _flush(self._text_cleaner)
        return ParsedPiece(thought, answer, calls)


def _clean(cleaner: TextCleaner | None, text: str) -> str:
    if cleaner is None:
        return text
    return cleaner.push(text)


def _flush(cleaner: TextCleaner | None) -> str:
    if cleaner is None:
        return ""
    return cleaner.flush()
