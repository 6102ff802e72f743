"""Separation of tool calls from text in a stream, however it is cut into pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.prompt.tools.calls import MAX_CALL_CHARS, MAX_CALLS, Schemas, ToolCall, misfit
from engine.prompt.tools.formats import CallFormat
from engine.prompt.tools.json_calls import BARE, read_bare

_ARGUMENTS = '"arguments"', '"parameters"'
_UNREADABLE = "it is not written as a call"
_QUOTES = re.compile(r'\\.|"', re.DOTALL)
_ENDS = "}", "]", ")", "```"
"""Last characters of calls that are whole without a marker after them."""


@dataclass(frozen=True)
class SplitResult:
    """Text for the reader and complete calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class CallSplitter:
    """Separates calls from text. Text that may begin a marker waits until that is decided.

    A region that looks like a call but is not one becomes text, without its markers. White space
    around calls is dropped. A reply that consists of an object with name and arguments is a call
    without markers, if it fits a tool.

    Args:
        call_format: format of the model.
        tools: tools of the request.
        only_first: whether a call must come before any other text, with its markers; everything
            else is text.

    Attributes:
        calls: calls so far.
        doubt: reason why a region that looks like a call is not one, safe to show; empty if there
            is none.
        tail_chars: number of characters from the first call to the end.
    """

    def __init__(
        self, call_format: CallFormat, tools: Sequence[Mapping[str, Any]], only_first: bool = False
    ) -> None:
        self._format = call_format
        self._offered = tools
        self._only_first = only_first
        self._tools = {
            str(tool["function"]["name"]): tool["function"].get("parameters") or {}
            for tool in tools
        }
        self._bare = () if only_first else BARE
        self._ignored = () if only_first else call_format.ignored
        self._openings = sorted(
            (*call_format.openings, *call_format.dropped), key=len, reverse=True
        )
        self._buffer = ""
        self._is_open = False
        self._has_begun = False
        self._is_after_call = False
        self._read = call_format.read
        """Reads the open region."""
        self._is_bare = False
        """Whether the open region began without a marker."""
        self._is_cut = False
        self._searched = 0
        self._scanned = 0
        self._is_in_string = False
        self.calls: list[ToolCall] = []
        self.doubt = ""
        self.tail_chars = 0

    def copy(self) -> CallSplitter:
        """Return a splitter with the same format and tools, and no text."""
        return CallSplitter(self._format, self._offered, self._only_first)

    def push(self, text: str) -> SplitResult:
        """Append text; returns the text and calls that are decided."""
        self._buffer += text
        if self._is_open or self.calls:
            self.tail_chars += len(text)
        return self._process(is_last=False)

    def flush(self, is_cut: bool = False) -> SplitResult:
        """End the stream; returns the text and calls that were waiting.

        Args:
            is_cut: whether a limit ended the reply, so that the last call may lack its end.
        """
        self._is_cut = is_cut
        return self._process(is_last=True)

    def _process(self, is_last: bool) -> SplitResult:
        texts: list[str] = []
        n_before = len(self.calls)
        while True:
            if self._is_open:
                is_taken = self._take_region(texts, is_last)
            else:
                is_taken = self._take_text(texts, is_last)
            if not is_taken:
                return SplitResult("".join(texts), tuple(self.calls[n_before:]))

    def _take_text(self, texts: list[str], is_last: bool) -> bool:
        """Process text up to the next marker; returns whether there is one."""
        buffer = self._buffer
        if not self._has_begun:
            start = buffer.lstrip()
            packed = "".join(start.split())
            if packed.startswith(self._bare) or start.startswith(self._format.at_start):
                read = _read_bare if packed.startswith(self._bare) else self._format.read
                self._open(buffer, is_bare=True, read=read)
                return True
            for tag in self._ignored:
                if start.startswith(tag):
                    self._buffer = start[len(tag) :]
                    return True
            may_open = any(
                text.startswith(start)
                for text in (*self._format.at_start, *self._openings, *self._ignored)
            )
            if not is_last and (may_open or any(text.startswith(packed) for text in self._bare)):
                return False
            self._has_begun = self._only_first and not start.startswith(tuple(self._openings))
        if self._only_first and self._has_begun and not self.calls:
            self._buffer = ""
            self._emit(buffer, texts)
            return False
        matches = [
            (position, -len(text), text)
            for text in self._openings
            if (position := buffer.find(text)) >= 0
        ]
        if matches:
            position, _, marker = min(matches)
            self._emit(buffer[:position].rstrip(), texts)
            if marker in self._format.dropped:
                self._buffer = buffer[position + len(marker) :]
                self._has_begun = True
            else:
                self._open(buffer[position:], is_bare=False, read=self._format.read)
            return True
        n_waiting = 0
        if not is_last:
            n_waiting = max((_overlap(buffer, text) for text in self._openings), default=0)
        end = len(buffer) - n_waiting
        if self.calls or not is_last:
            end = len(buffer[:end].rstrip())  # white space before a call is dropped
        self._emit(buffer[:end], texts)
        self._buffer = buffer[end:]
        return False

    def _open(
        self, buffer: str, is_bare: bool, read: Callable[[str, Schemas], list[ToolCall]]
    ) -> None:
        if not self.calls:
            self.tail_chars = len(buffer)
        self._buffer = buffer
        self._is_open = True
        self._is_bare = is_bare
        self._read = read
        self._has_begun = True
        self._searched = 0
        self._scanned = 0
        self._is_in_string = False

    def _emit(self, text: str, texts: list[str]) -> None:
        if self._is_after_call:
            text = text.lstrip()
        if text:
            self._is_after_call = False
            self._has_begun = True
            texts.append(text)

    def _take_region(self, texts: list[str], is_last: bool) -> bool:
        """Process a region if it is complete; returns whether it is."""
        end = self._end_of_region()
        is_closed = end is not None
        if end is None:
            if not is_last and len(self._buffer) <= MAX_CALL_CHARS:
                return False
            end = len(self._buffer)
        region = self._buffer[:end]
        self._buffer = self._buffer[end:]
        self._is_open = False
        may_call = is_closed or not self._is_cut or self._looks_whole(region)
        calls: list[ToolCall] = []
        if may_call and len(region) <= MAX_CALL_CHARS:
            calls = self._calls_of(region)
        if calls:
            self.calls += calls[: MAX_CALLS - len(self.calls)]
            self._is_after_call = True
        else:
            self._emit(self._without_markers(region), texts)
        return True

    def _looks_whole(self, region: str) -> bool:
        """Whether a region without closing text may be complete, although the reply was cut."""
        has_closing = bool(self._format.closing) and not self._is_bare
        return not has_closing and region.rstrip().endswith(_ENDS)

    def _calls_of(self, region: str) -> list[ToolCall]:
        """Return the calls of a region; empty if a call without markers fits no tool."""
        calls = self._read(region, self._tools)
        reasons = []
        if self._is_bare:
            for tool_call in calls:
                if reason := misfit(tool_call, self._tools):
                    reasons.append(f"{tool_call.name}: {reason}")
        if calls and not reasons:
            return calls

        if not self._is_bare or any(word in region for word in _ARGUMENTS):
            self.doubt = self.doubt or (reasons or [_UNREADABLE])[0]
        return []

    def _end_of_region(self) -> int | None:
        """Return the offset after the closing text; None if there is none outside of a string."""
        closing = self._format.closing
        if not closing:
            return None
        while (position := self._buffer.find(closing, self._searched)) >= 0:
            if not (self._format.is_quoted and self._is_string_at(position)):
                return position + len(closing)
            self._searched = position + len(closing)
        self._searched = max(self._searched, len(self._buffer) - len(closing))
        return None

    def _is_string_at(self, position: int) -> bool:
        quotes = sum(
            match == '"' for match in _QUOTES.findall(self._buffer, self._scanned, position)
        )
        self._is_in_string ^= bool(quotes % 2)
        self._scanned = position
        return self._is_in_string

    def _without_markers(self, region: str) -> str:
        for text in (*self._openings, self._format.closing):
            if text:
                region = region.replace(text, "")
        return region


def _read_bare(region: str, _tools: Schemas) -> list[ToolCall]:
    return read_bare(region)


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of a text that is a beginning of the marker."""
    for n in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:n]):
            return n
    return 0
