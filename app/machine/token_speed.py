"""The speed of a reply from the times of its tokens: rates over windows, a history for the graph, gaps.

Works on the growing list of a ``ReplyMeter``, which the engine's thread appends to; nothing here waits for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

BUCKET_S = 1.0


def rate_over(times_s: Sequence[float], now_s: float, window_s: float) -> float:
    """Tokens per second over the last seconds; 0 before there are two tokens.

    Where tokens come more rarely than the window is long, the time since the token before counts: a slow reply shows
    its rate and not a change of zero and one, and a stall shows as a rate that falls.
    """
    n = len(times_s)
    if n < 2:
        return 0.0
    first = min(max(0, bisect_right(times_s, now_s - window_s) - 1), n - 2)
    last_s = times_s[n - 1]
    gap_s = last_s - times_s[n - 2]
    # Within the usual gap nothing is late yet, and the figure does not sag between two tokens.
    end_s = now_s if now_s - last_s > gap_s else last_s
    elapsed_s = end_s - times_s[first]
    return (n - 1 - first) / elapsed_s if elapsed_s > 0 else 0.0


class RateHistory:
    """Tokens per second in each second of a reply, counted once and kept.

    A token's share of a second is the share of its own time that lies in it, so the curve is smooth at any speed.
    """

    def __init__(self) -> None:
        self._times_s: Sequence[float] = ()
        self._counted = 0
        self._tokens: list[float] = []

    def follow(self, times_s: Sequence[float]) -> None:
        """Count what has come since the last call; another list begins a new reply."""
        if times_s is not self._times_s:
            self._times_s, self._counted, self._tokens = times_s, 0, []
        n = len(times_s)
        for i in range(max(1, self._counted), n):
            self._spread(times_s[i - 1] - times_s[0], times_s[i] - times_s[0])
        self._counted = n

    def rates_tps(self) -> list[float]:
        """Return the rate of every second that is over, oldest first, and of the last one while it lasts."""
        if not self._tokens:
            return []
        rates = [tokens / BUCKET_S for tokens in self._tokens]
        ended_s = self._times_s[self._counted - 1] - self._times_s[0]
        covered_s = ended_s - (len(rates) - 1) * BUCKET_S
        if covered_s < BUCKET_S / 4 and len(rates) > 1:
            return rates[:-1]  # too little of it to call it a rate
        rates[-1] = self._tokens[-1] / covered_s if covered_s > 0 else 0.0
        return rates

    def _spread(self, begin_s: float, end_s: float) -> None:
        length_s = end_s - begin_s
        while len(self._tokens) <= end_s / BUCKET_S:
            self._tokens.append(0.0)
        bucket = int(begin_s / BUCKET_S)
        while length_s > 0 and bucket * BUCKET_S < end_s:
            inside_s = min(end_s, (bucket + 1) * BUCKET_S) - max(begin_s, bucket * BUCKET_S)
            self._tokens[bucket] += max(0.0, inside_s) / length_s
            bucket += 1
