"""Where the Markdown blocks that are complete end, in a text that still grows.

A guess by lines, for what is shown while a reply streams: what it takes for open is shown as it came, and a wrong guess
costs time, not text. Knows no widget.
"""

from __future__ import annotations

import re

FIRST_LOOK_CHARS = 512
"""A block that is still open is parsed when it has become so long, and whenever it has doubled."""

_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})(?P<rest>.*)")
_LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_HEADING = re.compile(r" {0,3}#{1,6}\s")


def ready_chars(context: str, tail: str) -> int:
    """Return how much of the tail is worth parsing now.

    Parsing lays out the whole screen, where plain text costs a line of it, and a list or a table is built anew every
    time. So blocks are parsed when they are complete; open ones only when they have grown much, since a long fence or
    list would cost quadratic time otherwise.

    Args:
        context: the part of the open block that was parsed already; "" if the tail begins a block.
        tail: what came since.
    """
    complete = complete_chars(context + tail) - len(context)
    if complete > 0:
        return complete
    if len(tail) >= max(FIRST_LOOK_CHARS, len(context)):
        return tail.rfind("\n") + 1
    return 0


def complete_chars(text: str) -> int:
    """Return where the last complete block ends; 0 if none is complete."""
    scan = _Scan()
    for line in text.splitlines(keepends=True):
        scan.take(line)
    return scan.complete


class _Scan:
    """Goes through a text line by line.

    Attributes:
        complete: characters up to the end of the last complete block.
    """

    def __init__(self) -> None:
        self.complete = 0
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
