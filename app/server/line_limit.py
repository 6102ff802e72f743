"""Where text that fills a gap ends: with a line of less indentation, or with a line after a time.

llama-server's fields ``n_indent`` and ``t_max_predict_ms``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_BLANKS = " \t"


class LineLimit:
    """Limit on the further lines of a reply.

    Args:
        min_indent: Number of blanks; a further line that begins with fewer is cut off. 0 for any
            line.
        limit_s: Time after which the reply ends with the next line; 0 for no limit.
        clock: Returns seconds.

    Attributes:
        is_reached: Whether the reply ends here.
    """

    def __init__(
        self, min_indent: int, limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._min_indent = min_indent
        self._limit_s = limit_s
        self._clock = clock
        self._start_s = clock()
        self._line_start = ""
        """Line break and blanks that wait until the line has another character."""
        self.is_reached = False

    def push(self, text: str) -> str:
        """Add text of the reply, and return the text that certainly belongs to it."""
        certain = ""
        for char in text:
            if self._line_start and char in _BLANKS:
                self._line_start += char
                continue
            if self._line_start and len(self._line_start) <= self._min_indent:
                self._line_start = ""
                self.is_reached = True
                break
            certain += self._line_start
            self._line_start = ""

            if char != "\n":
                certain += char
            elif self._limit_s and self._clock() - self._start_s > self._limit_s:
                certain += char
                self.is_reached = True
                break
            elif self._min_indent:
                self._line_start = char
            else:
                certain += char
        return certain

    def flush(self) -> str:
        """Return the text that waits; the reply is over."""
        waiting = self._line_start
        self._line_start = ""
        return waiting
