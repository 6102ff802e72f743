"""Drawing pace of the interface: slower when drawing costs the engine too much."""

from __future__ import annotations

MOST_SHARE = 0.02
"""Of one core; above it the interface draws more rarely. Where every core decodes, a millisecond of drawing costs more
than one of decoding: the threads wait for the one that has lost its core."""
RELAXED_SHARE = 0.01
SLOWEST = 4
TYPING_PAUSE_S = 0.5
"""Seconds without a key after which nobody counts as typing."""
_SMOOTHING = 0.3
_SETTLING = 2
"""Samples between two changes, so that the effect of one shows before the next."""


class InterfacePace:
    """Turns the interface's cost into a divisor of its refresh rate: 1, 2 or 4."""

    def __init__(self, divisor: int = 1) -> None:
        self.divisor = divisor
        self.cost: float | None = None
        """Share of one core, smoothed; None until it was measured."""
        self._settling = _SETTLING

    def note_cost(self, share: float | None, is_engine_busy: bool) -> None:
        """Take one measurement, about once a second. Only while the engine works does drawing take from it."""
        if share is None:
            return
        if not is_engine_busy:
            self.cost = share
            return
        self.cost = share if self.cost is None else self.cost + _SMOOTHING * (share - self.cost)
        self._settling -= 1
        if self._settling > 0:
            return
        if self.cost > MOST_SHARE and self.divisor < SLOWEST:
            self._change(self.divisor * 2)
        elif self.cost < RELAXED_SHARE and self.divisor > 1:
            self._change(self.divisor // 2)

    def _change(self, divisor: int) -> None:
        self.divisor, self._settling = divisor, _SETTLING


class Refreshes:
    """Counts the refreshes of one view, and leaves out those that the pace does not allow."""

    def __init__(self, pace: InterfacePace) -> None:
        self._pace = pace
        self._count = 0

    def is_left_out(self) -> bool:
        """Whether the refresh that is due now is to be left out; call it once for each."""
        self._count += 1
        return self._count % self._pace.divisor != 0


class TypingRhythm:
    """Draws a running reply right behind the keys of somebody who types, when the next one is furthest away.

    Laying out new text takes tens of milliseconds where the engine has every core, and a key pressed meanwhile is
    painted only then.
    """

    def __init__(self) -> None:
        self._key_s = self._drawn_s = float("-inf")

    def note_text(self, text: str, now_s: float) -> None:
        """The prompt has changed; when nothing stands there any more it was sent, and nobody is typing."""
        self._key_s = now_s if text else float("-inf")

    def note_drawn(self, now_s: float) -> None:
        """New text of the reply is being drawn."""
        self._drawn_s = now_s

    def is_typing(self, now_s: float) -> bool:
        """Whether the next key is to be waited for."""
        return now_s - self._key_s < TYPING_PAUSE_S

    def is_due(self, now_s: float, period_s: float) -> bool:
        """Whether the last drawing is at least ``period_s`` ago."""
        return now_s - self._drawn_s >= period_s
