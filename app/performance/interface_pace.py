"""How often the interface may draw: it slows down by itself when drawing costs the engine too much."""

from __future__ import annotations

MOST_SHARE = 0.10
"""Of one core, which is 5 % of two; above it the interface draws more rarely."""
RELAXED_SHARE = 0.04
SLOWEST = 8
_SMOOTHING = 0.3
_SETTLING = 3
"""Samples between two changes, so that the effect of one shows before the next."""


class InterfacePace:
    """Turns the interface's cost into a divisor of its refresh rate: 1, 2, 4 or 8."""

    def __init__(self) -> None:
        self.divisor = 1
        self._cost: float | None = None
        self._settling = _SETTLING
        self._tick = 0

    @property
    def cost(self) -> float | None:
        """Share of one core, smoothed; None until it was measured."""
        return self._cost

    def note_cost(self, share: float | None, is_engine_busy: bool) -> None:
        """Take one measurement, about once a second. Only while the engine works does drawing take from it."""
        if share is None:
            return
        self._cost = share if self._cost is None else self._cost + _SMOOTHING * (share - self._cost)
        self._settling -= 1
        if self._settling > 0:
            return
        if self._cost > MOST_SHARE and is_engine_busy and self.divisor < SLOWEST:
            self._change(self.divisor * 2)
        elif self.divisor > 1 and (self._cost < RELAXED_SHARE or not is_engine_busy):
            self._change(self.divisor // 2)

    def skips(self) -> bool:
        """Whether this refresh is to be left out; call it once for each."""
        self._tick += 1
        return self._tick % self.divisor != 0

    def _change(self, divisor: int) -> None:
        self.divisor, self._settling = divisor, _SETTLING
