"""Stop strings in streamed text: text that may be the start of one is held back until that is
decided."""

from collections.abc import Sequence


class StopStrings:
    """Watches a stream for any of several strings.

    Args:
        strings: empty ones are ignored.

    Attributes:
        hit: whether one was found; nothing follows then.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [text for text in strings if text]
        self._held = ""
        self._n_known = 0
        self.hit = False

    def push(self, text: str) -> str:
        """Take the next piece; returns the text that certainly precedes any stop string."""
        if not self._strings:
            return text
        self._held += text
        found = [at for stop in self._strings if (at := self._held.find(stop)) >= 0]
        if found:
            self.hit = True
            certain = self._held[: min(found)]
            self._held = ""
            return self._unknown(certain)
        keep = max(_overlap(self._held, stop) for stop in self._strings)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return self._unknown(certain)

    def know(self, text: str) -> None:
        """Set the text before the stream: stop strings inside it are ignored, one begun at its end
        is completed."""
        self._n_known = max((_overlap(text, stop) for stop in self._strings), default=0)
        self._held = text[len(text) - self._n_known :]

    def flush(self) -> str:
        """End the stream; returns the text that was held back."""
        held = self._held
        self._held = ""
        return self._unknown(held)

    def _unknown(self, text: str) -> str:
        """Return the text without its leading characters that were passed to ``know``."""
        n_known = min(self._n_known, len(text))
        self._n_known -= n_known
        return text[n_known:]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that is a beginning of stop."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
