"""Statistics of rates measured in passes: which of several settings is the fastest.

Machines drift as clocks fall and other programs start. So settings are compared within the same
pass, as ratios, with intervals of the median, which a single disturbed sample hardly changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.9
GAIN = 1.03
"""Minimum of the speed ratio at which a costlier setting is worth it."""
CLEARLY_FASTER = 1 / 0.85
"""Median ratio above which the interval's width does not matter, given ``PASSES_OUTVOTING_ONE``
passes."""
PASSES_BEFORE_DROPPING = 2
AGREEING = 1.25
"""Largest share between the ratios of a few passes that agree: one disturbed sample shows."""
PASSES_OUTVOTING_ONE = 3
"""Number of values whose median withstands one disturbed sample."""


@dataclass(frozen=True)
class Interval:
    """A median and its confidence interval.

    Attributes:
        median: median of the values.
        low: lower end of the interval.
        high: upper end of the interval.
        n: number of values.
        is_sure: whether the interval contains the true median with ``CONFIDENCE``. With fewer than
            five values it is only their range.
    """

    median: float
    low: float
    high: float
    n: int
    is_sure: bool

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median with the narrowest interval between two of the values that reaches
    ``CONFIDENCE``.

    The k-th smallest and k-th largest of n values enclose the median with probability 1 - 2 P(B <
    k), where B counts heads in n tosses: no assumption about the distribution is needed.

    Args:
        values: at least one.
    """
    import statistics  # a module import would delay the first frame

    ordered = sorted(values)
    n = len(ordered)
    k = 0
    outside = 0
    while 1 - 2 * (outside + math.comb(n, k)) / 2**n >= CONFIDENCE:
        outside += math.comb(n, k)
        k += 1
    edge = max(1, k)
    return Interval(statistics.median(ordered), ordered[edge - 1], ordered[n - edge], n, k > 0)


class Contest:
    """Settings measured against each other, pass by pass.

    Args:
        settings: settings by ascending cost; without a significant difference the cheaper one wins.

    Attributes:
        live: settings that are still measured, by ascending cost.
    """

    def __init__(self, settings: Sequence[int]) -> None:
        self.settings = list(settings)
        self.live = list(settings)
        self._rates: dict[int, dict[int, float]] = {setting: {} for setting in settings}

    def add(self, number: int, setting: int, rate: float) -> None:
        """Add the rate of one setting in one pass; it is above 0, and more is better."""
        self._rates[setting][number] = rate

    def rate(self, setting: int) -> Interval | None:
        """Return the rate of one setting; None before it was measured."""
        rates = self._rates[setting]
        if rates:
            return median_interval(list(rates.values()))
        return None

    def ratio(self, faster: int, slower: int) -> Interval | None:
        """Return the speed ratio of two settings over the passes that measured both; None without
        any."""
        faster_rates = self._rates[faster]
        slower_rates = self._rates[slower]
        ratios = [
            faster_rates[number] / slower_rates[number]
            for number in faster_rates
            if number in slower_rates
        ]
        if ratios:
            return median_interval(ratios)
        return None

    @property
    def leader(self) -> int | None:
        """The live setting of the highest median rate."""
        medians = {
            setting: rate.median
            for setting in self.live
            if (rate := self.rate(setting)) is not None
        }
        if medians:
            return max(medians, key=medians.__getitem__)
        return None

    @property
    def winner(self) -> int | None:
        """The cheapest setting that the leader does not beat; None before anything was measured."""
        leader = self.leader
        if leader is None:
            return None
        return next(s for s in self.live if self._rates[s] and not self._is_beaten(s, leader))

    def is_beaten(self, setting: int) -> bool:
        """Whether the leader is faster than this setting by more than noise and by enough to
        matter."""
        leader = self.leader
        return leader is not None and self._is_beaten(setting, leader)

    def drop_slow(self) -> None:
        """Remove settings that are clearly slower than the leader from ``live``.

        A few passes are enough if their ratios agree; otherwise the interval must be certain.
        """
        leader = self.leader
        if leader is None:
            return
        for setting in self.live.copy():
            ratio = self.ratio(leader, setting)
            if ratio is None or ratio.n < PASSES_BEFORE_DROPPING:
                continue
            if not ratio.is_sure and ratio.high > AGREEING * ratio.low:
                continue
            if ratio.low > 1 and ratio.median > CLEARLY_FASTER:
                self.live.remove(setting)

    @property
    def is_settled(self) -> bool:
        """Whether further passes would hardly change the winner."""
        leader = self.leader
        return leader is not None and all(
            self._is_decided(s, leader) for s in self.live if s != leader
        )

    def _is_beaten(self, setting: int, leader: int) -> bool:
        if setting == leader:
            return False
        ratio = self.ratio(leader, setting)
        if ratio is None:
            return False
        is_large = ratio.median > CLEARLY_FASTER and ratio.n >= PASSES_OUTVOTING_ONE
        return is_large or (ratio.low > 1 and ratio.median > GAIN)

    def _is_decided(self, setting: int, leader: int) -> bool:
        ratio = self.ratio(leader, setting)
        if ratio is None or not ratio.is_sure:
            return False
        return ratio.high < GAIN or (ratio.low > 1 and ratio.median > GAIN)
