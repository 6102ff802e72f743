"""Room in a context that is full: which of the oldest turns go, so that the next prompt fits. In
the engine's thread.

Whole turns go, and the system prompt stays. A quarter of the context is made free where that is
possible, so that this does not happen with every message.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_REPLY_TOKENS = 16
"""Room that must be left for an answer before a prompt is taken."""
ANNOUNCED_SHARE = 0.85
"""From here on the user knows what will happen when the context is full."""
FREED_SHARE = 4
"""After turns were dropped, one part in this many of the context is free."""


class NoRoomError(Exception):
    """A prompt does not fit, whatever goes."""

    def __init__(self, needed_tokens: int) -> None:
        super().__init__(f"{needed_tokens} tokens are needed")
        self.needed_tokens = needed_tokens
        """Of the context, for the prompt alone with the least of a reply."""


def turns_to_drop(starts: Sequence[int], n_tokens: int, n_ctx: int, least_free: int) -> int:
    """Return how many of the oldest turns should go, at most all but the last; ``starts``: where
    each begins."""
    for wanted_free in (max(least_free, n_ctx // FREED_SHARE), least_free):
        for n in range(1, len(starts)):
            if n_tokens - (starts[n] - starts[0]) + wanted_free <= n_ctx:
                return n
    return max(0, len(starts) - 1)
