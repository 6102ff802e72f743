"""Finds the end of the complete Markdown blocks in a text that still grows.

A guess by lines, for what is shown while a reply streams: what is complete is not parsed again until the reply ends, so
a wrong guess is a wrong look for a while, not a wrong text.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})(?P<rest>.*)")
_LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_ITEM_START = re.compile(r"^([ \t]*)(?:[-*+]|\d{1,9}[.)])[ \t]", re.MULTILINE)
_HEADING = re.compile(r" {0,3}#{1,6}\s")


def complete_chars(text: str) -> int:
    """Return where the last complete block ends; 0 if none is complete."""
    scan = _Scan()
    for line in text.splitlines(keepends=True):
        scan.take(line)
    return scan.complete


def last_item_start(text: str) -> int:
    """Return where the last item of the list begins that an open block ends with; 0 without a second item."""
    indents = [(found.start(), len(found[1].expandtabs())) for found in _ITEM_START.finditer(text)]
    outermost = min((indent for _, indent in indents), default=0)
    starts = [start for start, indent in indents if indent == outermost]
    return starts[-1] if len(starts) > 1 else 0


class _Scan:
    """Goes through a text line by line."""

    def __init__(self) -> None:
        self.complete = 0
        """Characters up to the end of the last complete block."""
        self._pos = 0
        self._fence = ""
        self._is_list = False
        self._is_after_blank = False

    def take(self, line: str) -> None:
        """Take the next line, which is the last one if it has no line break."""
        end = self._pos + len(line)
        is_whole = line.endswith("\n")
        if self._fence:
            self._take_code(line, end, is_whole)
        elif not line.strip():
            if is_whole and not self._is_list:
                self.complete = end
            self._is_after_blank = True
        else:
            self._take_text(line, end, is_whole)
            self._is_after_blank = False
        self._pos = end

    def _take_code(self, line: str, end: int, is_whole: bool) -> None:
        found = _FENCE.match(line)
        if is_whole and found and found["fence"].startswith(self._fence) and not found["rest"].strip():
            self._fence = ""
            if not self._is_list:
                self.complete = end

    def _take_text(self, line: str, end: int, is_whole: bool) -> None:
        is_item = _LIST_ITEM.match(line) is not None
        if self._is_list and self._is_after_blank and not is_item and not line[0].isspace():
            self._is_list, self.complete = False, self._pos
        found = _FENCE.match(line)
        if found:
            self._fence = found["fence"]
        elif is_item:
            self._is_list = True
        elif is_whole and not self._is_list and _HEADING.match(line):
            self.complete = end
