"""Room in a full context: which of the oldest turns to drop so that the next prompt fits.

Whole turns are dropped, and the system prompt stays. If possible, a quarter of the context is
freed, so that this does not happen with every message.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_REPLY_TOKENS = 16
"""Tokens that a prompt must leave free for its reply."""
ANNOUNCED_SHARE = 0.85
"""Share of the context above which the user is told what happens when it is full."""
FREED_SHARE = 4
"""After turns were dropped, one part in this many of the context is free."""


class NoRoomError(Exception):
    """A prompt does not fit the context even without earlier turns.

    Attributes:
        needed_tokens: tokens of the prompt alone, with the least reply.
    """

    def __init__(self, needed_tokens: int) -> None:
        super().__init__(f"{needed_tokens} tokens are needed")
        self.needed_tokens = needed_tokens


def turns_to_drop(starts: Sequence[int], n_tokens: int, n_ctx: int, least_free: int) -> int:
    """Return the number of oldest turns to drop, at most all but the last.

    Args:
        starts: positions of the turns.
        n_tokens: tokens of the prompt.
        least_free: tokens that must be free at least.
    """
    for free in (max(least_free, n_ctx // FREED_SHARE), least_free):
        for n in range(1, len(starts)):
            if n_tokens - (starts[n] - starts[0]) + free <= n_ctx:
                return n
    return max(0, len(starts) - 1)
