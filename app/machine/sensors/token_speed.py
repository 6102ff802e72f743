"""Speed of a reply from the times of its tokens: rates, a graph, slow tokens and their causes.

It reads the growing list of a ``ReplyMeter``, to which the engine thread appends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import pairwise

from app.machine.sensors.sample import MachineSample
from app.machine.sensors.speed_causes import machine_causes, usual_clock_ghz
from app.text.figures import counted
from app.text.record import record

BUCKET_S = 1.0
TIMES_THE_MEDIAN = 3.0
LEAST_EXCESS_S = 0.05
GUESSED = 0.125
"""Share of the usual time below which a token was guessed and came with the one before it."""
LEAST_GAPS = 8
"""Number of gaps below which their median is meaningless."""
_MOST_KEPT = 64
_GAPS_KEPT = 501


def rate_over(times_s: Sequence[float], now_s: float, window_s: float) -> float:
    """Return tokens per second over the last seconds; 0 before the second token.

    If tokens are rarer than the window is long, the time since the previous token counts. So a slow
    reply shows a steady rate, and a stall shows a falling one.
    """
    n = len(times_s)
    if n < 2:
        return 0.0
    first = min(max(0, bisect_right(times_s, now_s - window_s) - 1), n - 2)
    last_s = times_s[n - 1]
    gap_s = last_s - times_s[n - 2]
    # within the usual gap nothing is late, and the figure must not sag
    if now_s - last_s > gap_s:
        end_s = now_s
    else:
        end_s = last_s
    elapsed_s = end_s - times_s[first]
    if elapsed_s > 0:
        return (n - 1 - first) / elapsed_s
    return 0.0


class RateHistory:
    """Tokens per second for each second of a reply.

    A token counts for each second by the share of its time, so the curve is smooth at any speed.
    """

    def __init__(self) -> None:
        self._times_s: Sequence[float] = ()
        self._counted = 0
        self._tokens: list[float] = []

    def follow(self, times_s: Sequence[float]) -> None:
        """Count new tokens; another list starts a new reply."""
        if times_s is not self._times_s:
            self._times_s = times_s
            self._counted = 0
            self._tokens = []
        n = len(times_s)
        for i in range(max(1, self._counted), n):
            self._spread(times_s[i - 1] - times_s[0], times_s[i] - times_s[0])
        self._counted = n

    def rates_tps(self) -> list[float]:
        """Return the rates of all complete seconds, oldest first, and of the current one."""
        if not self._tokens:
            return []
        rates = [tokens / BUCKET_S for tokens in self._tokens]
        ended_s = self._times_s[self._counted - 1] - self._times_s[0]
        covered_s = ended_s - (len(rates) - 1) * BUCKET_S
        if covered_s < BUCKET_S / 4 and len(rates) > 1:
            return rates[:-1]  # too short for a rate
        if covered_s > 0:
            rates[-1] = self._tokens[-1] / covered_s
        else:
            rates[-1] = 0.0
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


@record
class Stutter:
    """A slow token."""

    token: int
    """Number of the token, starting at 0."""
    begin_s: float
    end_s: float


class StutterWatch:
    """Finds the slow tokens of a reply; each token is examined once."""

    def __init__(self) -> None:
        self._times_s: Sequence[float] = ()
        self._forget()

    def _forget(self) -> None:
        self._n_examined = 1
        self.count = 0
        """Number of all stutters."""
        self._gaps_s: list[float] = []
        self.found: list[Stutter] = []
        """Newest stutters, oldest first."""
        self._causes: dict[Stutter, str] = {}

    @property
    def median_gap_s(self) -> float:
        """Seconds between neighbouring tokens; 0 before there are two."""
        if self._gaps_s:
            return self._gaps_s[len(self._gaps_s) // 2]
        return 0.0

    def follow(self, times_s: Sequence[float], changes_s: Sequence[float] = ()) -> None:
        """Examine new tokens; another list starts a new reply.

        Args:
            changes_s: times at which threads or memory of the weights changed. A token during such
                a change is no stutter, and later ones are compared with those after it.
        """
        if times_s is not self._times_s:
            self._times_s = times_s
            self._forget()
        n = len(times_s)
        for token in range(self._n_examined, n):
            begin_s = times_s[token - 1]
            end_s = times_s[token]
            if any(begin_s < change_s <= end_s for change_s in changes_s):
                self._gaps_s.clear()
            else:
                self._look_at(token, begin_s, end_s)
        self._n_examined = max(1, n)

    def newest(
        self, count: int, faults: Mapping[int, int], samples: Sequence[MachineSample]
    ) -> list[tuple[Stutter, str]]:
        """Return the newest stutters with their causes.

        A cause is final when all samples are there.
        """
        explained = []
        for stutter in self.found[-count:]:
            cause = self._causes.get(stutter)
            if cause is None:
                cause = cause_of(stutter, faults, samples)
                if samples and samples[-1].at_s >= stutter.end_s:
                    self._causes[stutter] = cause
            explained.append((stutter, cause))
        return explained

    def _look_at(self, token: int, begin_s: float, end_s: float) -> None:
        gap_s = end_s - begin_s
        median_s = self.median_gap_s
        if gap_s < GUESSED * median_s:
            return
        is_slow = gap_s > TIMES_THE_MEDIAN * median_s and gap_s - median_s > LEAST_EXCESS_S
        if len(self._gaps_s) >= LEAST_GAPS and is_slow:
            self.count += 1
            self.found.append(Stutter(token, begin_s, end_s))
            del self.found[:-_MOST_KEPT]
        insort(self._gaps_s, gap_s)
        if len(self._gaps_s) > _GAPS_KEPT:
            # removing from both ends in turn keeps the median
            del self._gaps_s[0 if token % 2 else -1]


def excess_at(times_s: Sequence[float], tokens: Mapping[int, int]) -> float:
    """Return how many seconds these tokens of a reply took beyond the median."""
    import statistics  # a module import would delay the first frame

    gaps_s = [end_s - begin_s for begin_s, end_s in pairwise(list(times_s))]
    if not gaps_s:
        return 0.0
    least_s = GUESSED * sorted(gaps_s)[3 * len(gaps_s) // 4]
    median_s = statistics.median(gap_s for gap_s in gaps_s if gap_s >= least_s)
    return sum(
        max(0.0, gaps_s[token - 1] - median_s) for token in tokens if 1 <= token <= len(gaps_s)
    )


def cause_of(stutter: Stutter, faults: Mapping[int, int], samples: Sequence[MachineSample]) -> str:
    """Describe why a token was slow, as far as is known.

    Args:
        faults: major page faults by token number.
    """
    pages = faults.get(stutter.token, 0)
    if pages:
        return f"{counted(pages, 'page')} from disk"
    ends_s = [sample.at_s for sample in samples]
    first = bisect_left(ends_s, stutter.begin_s)
    seen = [sample for sample in samples[first:] if sample.at_s - sample.interval_s < stutter.end_s]
    if not seen:
        is_past = not samples or samples[-1].at_s >= stutter.end_s
        if is_past:
            return ""
        return "looking for the cause"
    causes = machine_causes(seen, usual_clock_ghz=usual_clock_ghz(samples))
    if causes:
        return causes[0].text
    return "no cause seen"
