"""Whether replies have become slower or faster than what was measured when threads were tuned.

Rates are compared by what a token reads: weights, and the keys and values before it; so a long context is no drift.
"""

from __future__ import annotations

import statistics
from collections import deque

from app.program.state import Measured, TunedChoice
from app.text.record import record

REPLIES = 5
LEAST_TOKENS = 16
"""Shorter replies say nothing about speed."""
FAR = 1.35
"""Ratio of two speeds that is more than noise: choosing tokens and drawing them cost less."""


@record
class ReplyRate:
    """The speed of one reply.

    Attributes:
        choice: with what it was written.
        n_context: tokens in the context, on the average.
    """

    choice: TunedChoice
    decode_tps: float
    tokens: int
    n_context: int


class RateDrift:
    """Compares the newest replies with what was measured, as long as the same choice is in use.

    Args:
        bytes_per_token: weights that one decode step reads.
        kv_bytes_per_position: that it reads besides for each token before.
    """

    def __init__(self, bytes_per_token: int, kv_bytes_per_position: float) -> None:
        self._weights, self._position = bytes_per_token, kv_bytes_per_position
        self._ratios: deque[float] = deque(maxlen=REPLIES)
        self._expected: tuple[TunedChoice, float] | None = None

    def expect(self, choice: TunedChoice | None, measured: Measured | None) -> None:
        """From now on this choice holds, measured so; replies before do not count any more."""
        self._ratios.clear()
        self._expected = None
        if choice is not None and measured is not None and measured.decode_tps is not None:
            self._expected = choice, self._speed(measured.decode_tps, measured.n_context)

    def note(self, reply: ReplyRate) -> str:
        """Take a reply written while the machine was quiet; returns what is wrong, or ""."""
        if self._expected is None or reply.tokens < LEAST_TOKENS or reply.decode_tps <= 0:
            return ""
        choice, speed = self._expected
        if not is_in_use(choice, reply.choice):
            return ""
        self._ratios.append(self._speed(reply.decode_tps, reply.n_context) / speed)
        if len(self._ratios) < REPLIES:
            return ""
        ratio = statistics.median(self._ratios)
        if 1 / FAR <= ratio <= FAR:
            return ""
        change = f"{100 * (1 - ratio):.0f} % slower" if ratio < 1 else f"{100 * (ratio - 1):.0f} % faster"
        return f"replies are {change} than when threads were tuned (median of {REPLIES})"

    def _speed(self, tps: float, n_context: int) -> float:
        """Bytes read per second."""
        return tps * (self._weights + self._position * n_context)


def is_in_use(remembered: TunedChoice, now: TunedChoice) -> bool:
    """True if the remembered choice is in use; empty fields match anything."""
    threads = (remembered.decode, remembered.prefill, remembered.pinned) == (now.decode, now.prefill, now.pinned)
    return threads and remembered.weights in ("", now.weights) and remembered.kv_type in ("", now.kv_type)
