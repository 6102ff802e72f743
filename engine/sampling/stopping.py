"""Stop strings in streamed text. Text that may be the start of one waits until that is decided."""

from collections.abc import Sequence


class StopStrings:
    """Watches a stream for any of several strings.

    Args:
        strings: stop strings; empty ones are ignored.

    Attributes:
        hit: the stop string that came; empty before. Nothing follows it.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [text for text in strings if text]
        self._waiting = ""
        self._n_earlier = 0
        """Number of leading characters of ``_waiting`` that were passed to ``set_earlier_text``."""
        self.hit = ""

    def push(self, text: str) -> str:
        """Append text to the stream; returns the text that certainly precedes any stop string."""
        if not self._strings:
            return text
        self._waiting += text
        hits = [
            (position, stop)
            for stop in self._strings
            if (position := self._waiting.find(stop)) >= 0
        ]
        if hits:
            position, self.hit = min(hits)
            certain = self._waiting[:position]
            self._waiting = ""
            return self._without_earlier(certain)
        n_waiting = max(_overlap(self._waiting, stop) for stop in self._strings)
        n_certain = len(self._waiting) - n_waiting
        certain = self._waiting[:n_certain]
        self._waiting = self._waiting[n_certain:]
        return self._without_earlier(certain)

    def set_earlier_text(self, text: str) -> None:
        """Set the text before the stream. Stop strings inside it are ignored; one that begins at
        its end can be completed by the stream."""
        self._n_earlier = max((_overlap(text, stop) for stop in self._strings), default=0)
        self._waiting = text[len(text) - self._n_earlier :]

    def flush(self) -> str:
        """End the stream; returns the text that still waits."""
        waiting = self._waiting
        self._waiting = ""
        return self._without_earlier(waiting)

    def _without_earlier(self, text: str) -> str:
        """Remove the leading characters that were passed to ``set_earlier_text``."""
        n_earlier = min(self._n_earlier, len(text))
        self._n_earlier -= n_earlier
        return text[n_earlier:]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that is a beginning of ``stop``."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
