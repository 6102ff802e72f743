"""Calls in a stream of text: told from the text around them, however it is cut into pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.prompt.tools.calls import MOST_CALL_CHARS, MOST_CALLS, Schemas, ToolCall, misfit
from engine.prompt.tools.formats import CallFormat
from engine.prompt.tools.json_calls import BARE, read_bare

_ARGUMENTS = '"arguments"', '"parameters"'
_UNREADABLE = "it is not written as a call"
_QUOTES = re.compile(r'\\.|"', re.DOTALL)


@dataclass(frozen=True)
class SplitResult:
    """Parts of a piece of text: what is for the reader, and calls that are whole."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class CallSplitter:
    """Tell text and calls apart; what may be a marker's beginning is held back until that is
    decided.

    What looks like a call and is none is text, without its markers. White space around calls is
    dropped. A reply that is an object with name and arguments, and nothing else, is a call without
    markers, if a tool takes it.

    Args:
        how: the model's format.
        tools: of the request.
        only_first: whether a call must be before any other text, with its markers, and the rest is
            text whatever it looks like.

    Attributes:
        calls: found so far.
        doubt: why what looks like a call is none, safe to show; "" where nothing does.
        tail_chars: characters of the text from its first call on.
    """

    def __init__(
        self, how: CallFormat, tools: Sequence[Mapping[str, Any]], only_first: bool = False
    ) -> None:
        self._format = how
        self._offered = tools
        self._only_first = only_first
        self._tools = {
            str(tool["function"]["name"]): tool["function"].get("parameters") or {}
            for tool in tools
        }
        self._bare = () if only_first else BARE
        self._openings = sorted((*how.openings, *how.dropped), key=len, reverse=True)
        self._held = ""
        self._is_open = self._has_begun = self._is_after_call = False
        self._read = how.read
        """Reads the region."""
        self._is_bare = False
        """Whether it began without a marker."""
        self._searched = self._scanned = 0
        self._is_in_string = False
        self.calls: list[ToolCall] = []
        self.doubt = ""
        self.tail_chars = 0

    def fresh(self) -> CallSplitter:
        """Return one for the same calls, with no text yet."""
        return CallSplitter(self._format, self._offered, self._only_first)

    def push(self, text: str) -> SplitResult:
        """Take the next piece."""
        self._held += text
        if self._is_open or self.calls:
            self.tail_chars += len(text)
        return self._go_on(is_last=False)

    def flush(self) -> SplitResult:
        """The text is complete: return what was held back."""
        return self._go_on(is_last=True)

    def _go_on(self, is_last: bool) -> SplitResult:
        texts: list[str] = []
        n_before = len(self.calls)
        while True:
            if self._is_open:
                more = self._take_region(texts, is_last)
            else:
                more = self._take_text(texts, is_last)
            if not more:
                return SplitResult("".join(texts), tuple(self.calls[n_before:]))

    def _take_text(self, texts: list[str], is_last: bool) -> bool:
        """Take text up to the next marker; returns whether there was one."""
        held = self._held
        if not self._has_begun:
            start = held.lstrip()
            packed = "".join(start.split())
            if packed.startswith(self._bare) or start.startswith(self._format.at_start):
                self._open(
                    held,
                    is_bare=True,
                    read=_read_bare if packed.startswith(self._bare) else self._format.read,
                )
                return True
            may_open = any(
                text.startswith(start) for text in (*self._format.at_start, *self._openings)
            )
            if not is_last and (may_open or any(text.startswith(packed) for text in self._bare)):
                return False
            self._has_begun = self._only_first and not start.startswith(tuple(self._openings))
        if self._only_first and self._has_begun and not self.calls:
            self._held = ""
            self._say(held, texts)
            return False
        found = [(at, -len(text), text) for text in self._openings if (at := held.find(text)) >= 0]
        if found:
            at, _, marker = min(found)
            self._say(held[:at].rstrip(), texts)
            if marker in self._format.dropped:
                self._held = held[at + len(marker) :]
                self._has_begun = True
            else:
                self._open(held[at:], is_bare=False, read=self._format.read)
            return True
        if is_last:
            keep = 0
        else:
            keep = max((_overlap(held, text) for text in self._openings), default=0)
        keep = len(held) - len(
            held[: len(held) - keep].rstrip()
        )  # white space before a call is dropped
        if is_last and not self.calls:
            keep = 0
        self._say(held[: len(held) - keep], texts)
        self._held = held[len(held) - keep :]
        return False

    def _open(
        self, held: str, is_bare: bool, read: Callable[[str, Schemas], list[ToolCall]]
    ) -> None:
        if not self.calls:
            self.tail_chars = len(held)
        self._held = held
        self._is_open = True
        self._is_bare = is_bare
        self._read = read
        self._has_begun = True
        self._searched = self._scanned = 0
        self._is_in_string = False

    def _say(self, text: str, texts: list[str]) -> None:
        if self._is_after_call:
            text = text.lstrip()
        if text:
            self._is_after_call = False
            self._has_begun = True
            texts.append(text)

    def _take_region(self, texts: list[str], is_last: bool) -> bool:
        """Take a region if it is whole; returns whether it was."""
        end = self._end_of_region()
        if end is None:
            if not is_last and len(self._held) <= MOST_CALL_CHARS:
                return False
            end = len(self._held)
        region = self._held[:end]
        self._held = self._held[end:]
        self._is_open = False
        if len(region) <= MOST_CALL_CHARS:
            calls = self._fitting(region)
        else:
            calls = []
        if calls:
            self.calls += calls[: MOST_CALLS - len(self.calls)]
            self._is_after_call = True
        else:
            self._say(self._without_markers(region), texts)
        return True

    def _fitting(self, region: str) -> list[ToolCall]:
        """Return the calls of a region; none where one without markers fits no tool."""
        calls = self._read(region, self._tools)
        if self._is_bare:
            reasons = [f"{one.name}: {why}" for one in calls if (why := misfit(one, self._tools))]
        else:
            reasons = []
        if reasons or not calls:
            looks_like_one = not self._is_bare or any(word in region for word in _ARGUMENTS)
            self.doubt = self.doubt or ((reasons or [_UNREADABLE])[0] if looks_like_one else "")
            return []
        return calls

    def _end_of_region(self) -> int | None:
        """Return the offset after the closing text; None if that has not come, or is part of a
        string."""
        closing = self._format.closing
        if not closing:
            return None
        while (at := self._held.find(closing, self._searched)) >= 0:
            if not (self._format.is_quoted and self._is_string_at(at)):
                return at + len(closing)
            self._searched = at + len(closing)
        self._searched = max(self._searched, len(self._held) - len(closing))
        return None

    def _is_string_at(self, at: int) -> bool:
        quotes = sum(found == '"' for found in _QUOTES.findall(self._held, self._scanned, at))
        self._is_in_string ^= bool(quotes % 2)
        self._scanned = at
        return self._is_in_string

    def _without_markers(self, region: str) -> str:
        for text in (*self._openings, self._format.closing):
            if text:
                region = region.replace(text, "")
        return region


def _read_bare(region: str, _tools: Schemas) -> list[ToolCall]:
    return read_bare(region)


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of text that is a beginning of the marker."""
    return next(
        (n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0
    )
