"""Gathers the figures of the performance screen and the strip, only while one is shown; and the
pace of all drawing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property

from app.backend.engine_thread import EngineThread
from app.backend.status import Activity, EngineStatus
from app.machine.sensors.cached_reading import Rate
from app.machine.sensors.machine_monitor import MachineMonitor
from app.machine.sensors.records import Ceiling, EngineFigures, ceiling_at
from app.machine.sensors.sample import MachineSample
from app.machine.sensors.token_speed import BUCKET_S, RateHistory, Stutter, StutterWatch, rate_over
from app.text.record import record

MOST_SHARE = 0.02
"""Of one core; above it the interface draws more rarely. Where every core decodes, a millisecond of
drawing costs more than one of decoding: the threads wait for the one that has lost its core."""
RELAXED_SHARE = 0.01
SLOWEST = 4
TYPING_PAUSE_S = 0.5
"""Seconds without a key after which no one counts as typing."""
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
        """Take one measurement, about once a second.

        Only while the engine works does drawing take from it.
        """
        if share is None:
            return
        if not is_engine_busy:
            self.cost = share
            return
        if self.cost is None:
            self.cost = share
        else:
            self.cost = self.cost + _SMOOTHING * (share - self.cost)
        self._settling -= 1
        if self._settling > 0:
            return
        if self.cost > MOST_SHARE and self.divisor < SLOWEST:
            self.divisor = self.divisor * 2
            self._settling = _SETTLING
        elif self.cost < RELAXED_SHARE and self.divisor > 1:
            self.divisor = self.divisor // 2
            self._settling = _SETTLING

    def leaves_out(self, number: int) -> bool:
        """Whether a view is to leave out a refresh that is due, by its number from 1 on."""
        return number % self.divisor != 0


class TypingRhythm:
    """Draws a running reply right after the keys of somebody who types, when the next one is
    furthest away.

    Laying out new text takes tens of milliseconds where the engine has every core, and a key
    pressed meanwhile is painted only then.
    """

    def __init__(self) -> None:
        self._key_s = self._drawn_s = float("-inf")

    def note_text(self, text: str, now_s: float) -> None:
        """The prompt has changed; when nothing is there any more it was sent, and no one is
        typing."""
        if text:
            self._key_s = now_s
        else:
            self._key_s = float("-inf")

    def note_drawn(self, now_s: float) -> None:
        """New text of the reply is being drawn."""
        self._drawn_s = now_s

    def is_typing(self, now_s: float) -> bool:
        """Whether the next key is to be waited for."""
        return now_s - self._key_s < TYPING_PAUSE_S

    def is_due(self, now_s: float, period_s: float) -> bool:
        """Whether the last drawing is at least ``period_s`` ago."""
        return now_s - self._drawn_s >= period_s


SAMPLE_PERIOD_S = 1.0
PROBE_RETRY_S = 15.0
"""Seconds until a measurement of the memory that was given up, or had no room, is tried again."""
_SAMPLES_KEPT = 600
SHORT_WINDOW_S = 1.0
LONG_WINDOW_S = 10.0


@record
class Speed:
    """Tokens per second over three windows; 0 where there is nothing to count."""

    last_1_s: float = 0.0
    last_10_s: float = 0.0
    reply: float = 0.0
    prompt: float = 0.0


@record
class PerformanceView:
    """Everything that is shown, at one moment."""

    status: EngineStatus
    figures: EngineFigures
    sample: MachineSample | None = None
    loads: tuple[float, ...] = ()
    """Of all cores together, in cores, of every second that was looked at."""
    speed: Speed = Speed()
    rates_tps: tuple[float, ...] = ()
    marked_seconds: tuple[int, ...] = ()
    stutter: tuple[Stutter, str] | None = None
    n_stutters: int = 0
    ceiling: Ceiling | None = None
    interface_cost: float | None = None
    """Share of one core."""
    slowed_by: int = 1
    """Divisor of the interface's refresh rate: 1, 2 or 4."""


class PerformanceWatch:
    """The screens' source of figures; it has the memory measured while the engine is idle."""

    def __init__(self, engine_thread: EngineThread, pace: InterfacePace | None = None) -> None:
        self.pace = pace or InterfacePace()
        self._engine_thread = engine_thread
        self._interface = Rate(time.thread_time)
        self._interface_share: float | None = None
        self._viewers: set[object] = set()
        self._samples: deque[MachineSample] = deque(maxlen=_SAMPLES_KEPT)
        self._history = RateHistory()
        self._stutters = StutterWatch()
        self._probe_again_s: dict[tuple[int, bool], float] = {}

    @cached_property
    def _monitor(self) -> MachineMonitor:
        from engine.machine.host import available_memory_bytes  # the first frame would wait for it

        return MachineMonitor(available=available_memory_bytes)

    @property
    def is_watched(self) -> bool:
        """Whether any view is shown."""
        return bool(self._viewers)

    def note_view(self, view: object, is_shown: bool) -> None:
        """A view appears or disappears; the last one ends all looking."""
        if is_shown and not self._viewers:
            self._monitor.forget_rates()
        (self._viewers.add if is_shown else self._viewers.discard)(view)
        self._engine_thread.inbox.is_watched = self.is_watched

    def note_interface_cost(self) -> None:
        """Measure what the calling thread, the one that draws, took since the last call; about once
        a second."""
        self._interface_share = self._interface.since_last(self._engine_thread.now_s())
        self.pace.note_cost(self._interface_share, self._engine_thread.status.is_busy)

    def look(self) -> PerformanceView:
        """Return the figures of this moment."""
        status = self._engine_thread.status
        figures = self._engine_thread.state.figures
        now_s = self._engine_thread.now_s()
        if self._samples:
            before_s = self._samples[-1].at_s
        else:
            before_s = float("-inf")
        # A little early is due: two timers that drift must not make it every other second.
        if now_s - before_s >= 0.9 * SAMPLE_PERIOD_S:
            self._samples.append(self._monitor.sample(now_s, figures.facts, self._interface_share))
        times_s: Sequence[float] = status.meter.token_times_s if status.meter is not None else ()
        self._history.follow(times_s)
        self._stutters.follow(times_s)
        # A reply that is over is compared with what the memory allowed the threads that wrote it.
        if times_s and not status.is_busy and figures.threads:
            wrote = figures.threads
        else:
            wrote = status.threads
        speed = _speed_of(status, times_s, now_s)
        reached_tps = max(speed.last_10_s, speed.reply)
        ceiling = ceiling_at(
            figures.facts, status.context_used, figures.read_gbps.get(wrote), reached_tps
        )
        self._measure_memory_if_idle(
            status, figures, speed.reply if wrote == status.threads else 0.0, now_s
        )
        faults = figures.faults.by_token()
        found = self._stutters.found
        return PerformanceView(
            status=status,
            figures=figures,
            sample=self._samples[-1] if self._samples else None,
            loads=tuple(sum(sample.core_loads) for sample in self._samples),
            speed=speed,
            rates_tps=tuple(self._history.rates_tps()),
            marked_seconds=tuple(int((stutter.end_s - times_s[0]) / BUCKET_S) for stutter in found),
            stutter=next(iter(self._stutters.newest(1, faults, list(self._samples))), None),
            n_stutters=self._stutters.count,
            ceiling=ceiling,
            interface_cost=self.pace.cost,
            slowed_by=self.pace.divisor,
        )

    def _measure_memory_if_idle(
        self, status: EngineStatus, figures: EngineFigures, tps: float, now_s: float
    ) -> None:
        """Have the memory measured where it is unknown, and once more where a reply proved it
        faster than measured."""
        if status.activity is not Activity.READY or figures.facts is None:
            return
        ceiling = ceiling_at(
            figures.facts, status.context_used, figures.read_gbps.get(status.threads), tps
        )
        is_beaten = ceiling is not None and ceiling.is_beaten
        what = status.threads, is_beaten
        if (ceiling is None or is_beaten) and now_s >= self._probe_again_s.get(what, float("-inf")):
            # A small model that lives in a cache always beats the memory: once is enough there.
            if is_beaten:
                self._probe_again_s[what] = float("inf")
            else:
                self._probe_again_s[what] = now_s + PROBE_RETRY_S
            self._engine_thread.measure_bandwidth()


def _speed_of(status: EngineStatus, times_s: Sequence[float], now_s: float) -> Speed:
    meter = status.meter
    if meter is None:
        return Speed()
    if status.activity is not Activity.WRITING and times_s:
        now_s = times_s[-1]  # the reply is over: its last figures stay
    return Speed(
        last_1_s=rate_over(times_s, now_s, SHORT_WINDOW_S),
        last_10_s=rate_over(times_s, now_s, LONG_WINDOW_S),
        reply=meter.decode_tps,
        prompt=meter.prefill_tps,
    )
