"""Source of the figures for the performance screen and the strip, and the pace of drawing."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from app.backend.engine_thread import EngineThread
from app.backend.status import Activity, EngineStatus
from app.backend.work_thread import engine_thread_numbers
from app.machine.sensors.cached_reading import CachedReading, Rate
from app.machine.sensors.daily_speeds import day_of
from app.machine.sensors.energy import joules_per_token
from app.machine.sensors.machine_monitor import MachineMonitor
from app.machine.sensors.records import Ceiling, EngineFigures, ceiling_at
from app.machine.sensors.sample import MachineSample
from app.machine.sensors.speed_causes import (
    Cause,
    bound_text,
    fewer_threads,
    machine_causes,
    samples_between,
    usual_clock_ghz,
)
from app.machine.sensors.token_speed import BUCKET_S, RateHistory, Stutter, StutterWatch, rate_over
from app.machine.tuning.last_replies import LastReplies
from app.machine.tuning.own_change import own_change
from app.machine.tuning.threads_in_use import ChoiceChange
from app.text.record import record

if TYPE_CHECKING:
    from app.machine.tuning.speed_comparison import SpeedComparison
    from engine.machine.core_map import CoreMap

MAX_SHARE = 0.015
"""Share of one core above which the interface draws less often.

While every core decodes, drawing delays all threads, because they wait for the one that has lost
its core.
"""
RELAXED_SHARE = 0.0075
"""Share of one core below which the interface draws more often again."""
SLOWEST = 4
"""Largest divisor of the refresh rate."""
TYPING_PAUSE_S = 0.5
"""Seconds without a key after which the user no longer counts as typing."""
_SMOOTHING = 0.3
_SAMPLES_BETWEEN_CHANGES = 2
"""Samples between two changes of the pace, to see the effect of one before the next."""
_SAMPLES_OF_OPENING = 2
"""Samples after a screen was opened that include the cost of opening it."""


class InterfacePace:
    """Divisor of the interface's refresh rate (1, 2 or 4), chosen by the cost of drawing."""

    def __init__(self, divisor: int = 1) -> None:
        self._first_divisor = divisor
        self.divisor = divisor
        self.cost: float | None = None
        """Share of one core, smoothed; None until it is measured."""
        self._n_samples_to_wait = _SAMPLES_BETWEEN_CHANGES
        self._n_samples_to_skip = 0

    def restart(self) -> None:
        """Begin again for another screen, whose drawing has another cost."""
        self.divisor = self._first_divisor
        self.cost = None
        self._n_samples_to_wait = _SAMPLES_BETWEEN_CHANGES
        self._n_samples_to_skip = _SAMPLES_OF_OPENING

    def add_cost(self, share: float | None, is_engine_busy: bool) -> None:
        """Take a measurement, about once a second.

        The pace changes only while the engine works, because only then drawing slows it down.
        """
        if share is None:
            return
        if self._n_samples_to_skip > 0:
            self._n_samples_to_skip -= 1
            return
        if not is_engine_busy:
            self.cost = share
            return
        if self.cost is None:
            self.cost = share
        else:
            self.cost = self.cost + _SMOOTHING * (share - self.cost)
        self._n_samples_to_wait -= 1
        if self._n_samples_to_wait > 0:
            return
        if self.cost > MAX_SHARE and self.divisor < SLOWEST:
            self.divisor = self.divisor * 2
            self._n_samples_to_wait = _SAMPLES_BETWEEN_CHANGES
        elif self.cost < RELAXED_SHARE and self.divisor > 1:
            self.divisor = self.divisor // 2
            self._n_samples_to_wait = _SAMPLES_BETWEEN_CHANGES

    def leaves_out(self, number: int) -> bool:
        """Whether a view skips a refresh, by the number of the refresh."""
        return number % self.divisor != 0


class TypingRhythm:
    """Rhythm of drawing a running reply while the user types.

    The reply is drawn right after a key, because laying out new text takes tens of milliseconds
    while the engine uses every core, and would delay the next key.
    """

    def __init__(self) -> None:
        self._key_s = self._drawn_s = float("-inf")

    def set_prompt_text(self, text: str, now_s: float) -> None:
        """Take a change of the prompt; an empty prompt means that the message was sent."""
        if text:
            self._key_s = now_s
        else:
            self._key_s = float("-inf")

    def set_drawn_time(self, now_s: float) -> None:
        """Take the time at which new text of the reply is drawn."""
        self._drawn_s = now_s

    def is_typing(self, now_s: float) -> bool:
        """Whether the user is typing, so that drawing waits for the next key."""
        return now_s - self._key_s < TYPING_PAUSE_S

    def is_due(self, now_s: float, period_s: float) -> bool:
        """Whether the reply was last drawn at least ``period_s`` ago."""
        return now_s - self._drawn_s >= period_s


SAMPLE_PERIOD_S = 1.0
PROBE_RETRY_S = 15.0
"""Seconds before another attempt to measure the memory."""
_LONGEST_INTERVAL_S = 3.0
"""Seconds after which loads and rates since the last sample would mislead."""
_MAX_SAMPLES = 600
_CLOCK_SAMPLES = 60
"""Number of samples whose median is the usual clock."""
CORES_WINDOW_S = 60
"""Seconds for which the load of each core is shown."""
_CORE_MAP_PERIOD_S = 10.0
SHORT_WINDOW_S = 1.0
LONG_WINDOW_S = 10.0


@record
class Speed:
    """Tokens per second over several windows; 0 if there are no tokens."""

    last_1_s: float = 0.0
    last_10_s: float = 0.0
    reply: float = 0.0
    prompt: float = 0.0


@record
class PerformanceView:
    """All figures at one moment."""

    status: EngineStatus
    figures: EngineFigures
    sample: MachineSample | None = None
    samples: tuple[MachineSample, ...] = ()
    """Samples of the last minute, the newest last."""
    core_map: CoreMap | None = None
    """Cores by what they share; None if unknown."""
    speed: Speed = Speed()
    rates_tps: tuple[float, ...] = ()
    marked_seconds: tuple[int, ...] = ()
    stutter: tuple[Stutter, str] | None = None
    n_stutters: int = 0
    ceiling: Ceiling | None = None
    joules_per_token: float | None = None
    """Mean energy per token of the shown reply; None where it is not measured."""
    causes: tuple[Cause, ...] = ()
    """Disturbances of the shown reply."""
    changes: tuple[tuple[float, ChoiceChange], ...] = ()
    """Changes of the threads during the shown reply that matter for writing, with their second."""
    comparison: SpeedComparison | None = None
    """Speeds of the reply with two choices; None if nothing was changed."""
    interface_cost: float | None = None
    """Share of one core that drawing takes; None until it is measured."""
    slowed_by: int = 1
    """Divisor of the interface's refresh rate: 1, 2 or 4."""
    idle_work: str = ""
    """Name of the work that is done while nothing is requested; "" if there is none."""
    today: int = 0
    """Ordinal number of the date."""


class PerformanceWatch:
    """Source of figures for the screens. It requests measurements of the memory when idle."""

    def __init__(self, engine_thread: EngineThread, pace: InterfacePace | None = None) -> None:
        self.pace = pace or InterfacePace()
        self._engine_thread = engine_thread
        self._interface = Rate(time.thread_time)
        self._interface_share: float | None = None
        self._viewers: set[object] = set()
        self._samples: deque[MachineSample] = deque(maxlen=_MAX_SAMPLES)
        self._sampled_s = float("-inf")
        self._history = RateHistory()
        self._stutters = StutterWatch()
        self._replies = LastReplies()
        self._probe_again_s: dict[tuple[int, bool], float] = {}
        self._core_map = CachedReading(_read_core_map, _CORE_MAP_PERIOD_S)

    @cached_property
    def _monitor(self) -> MachineMonitor:
        from engine.machine.host import available_memory_bytes  # the first frame would wait for it

        return MachineMonitor(
            available=available_memory_bytes, engine_threads=engine_thread_numbers
        )

    @property
    def is_watched(self) -> bool:
        """Whether any view is shown."""
        return bool(self._viewers)

    def register_view(self, view: object, is_shown: bool) -> None:
        """Register a view that appears or disappears. While there is one, the machine is sampled
        between replies, too."""
        (self._viewers.add if is_shown else self._viewers.discard)(view)
        self._engine_thread.inbox.is_watched = self.is_watched

    @property
    def others_cores(self) -> float | None:
        """Cores that other programs use now; None if that is unknown."""
        if self._samples:
            return self._samples[-1].others_cores
        return None

    @property
    def measures_energy(self) -> bool:
        """Whether this machine tells its power."""
        return bool(self._samples) and self._samples[-1].energy is not None

    def look(self) -> None:
        """Measure the cost of the calling thread, which draws, since the last call, and sample the
        machine if a reply runs or a view is shown.
        """
        now_s = self._engine_thread.now_s()
        self._interface_share = self._interface.since_last(now_s)
        self.pace.add_cost(self._interface_share, self._engine_thread.status.is_busy)
        self.sample_reply()

    def sample_reply(self) -> None:
        """Sample the machine if a reply runs or a view is shown, once a second at most.

        So a view that opens later knows the causes of stutters. The sample at the beginning of a
        reply has no loads and rates yet, but the next one has them for the time since then.
        """
        self._follow_reply()
        activity = self._engine_thread.status.activity
        if self.is_watched or activity in (Activity.READING, Activity.WRITING):
            self._sample(self._engine_thread.now_s())

    def _follow_reply(self) -> None:
        status = self._engine_thread.status
        threads = self._engine_thread.state.threads
        if status.meter is not None and threads is not None:
            self._replies.follow(status.meter.token_times_s, threads.now, status.is_busy)

    def _sample(self, now_s: float) -> None:
        """Sample the machine once a second."""
        # Sample slightly early: drifting timers must not skip every other second.
        elapsed_s = now_s - self._sampled_s
        if elapsed_s < 0.9 * SAMPLE_PERIOD_S:
            return
        if elapsed_s > _LONGEST_INTERVAL_S:
            self._monitor.forget_rates()
        self._sampled_s = now_s
        if self.is_watched:
            facts = self._engine_thread.state.figures.facts
            sample = self._monitor.sample(now_s, facts, self._interface_share)
        else:
            sample = self._monitor.sample_load(now_s, self._interface_share)
        self._samples.append(sample)

    def read_view(self) -> PerformanceView:
        """Return the present figures."""
        status = self._engine_thread.status
        figures = self._engine_thread.state.figures
        now_s = self._engine_thread.now_s()
        self._sample(now_s)
        self._follow_reply()
        times_s: Sequence[float] = status.meter.token_times_s if status.meter is not None else ()
        self._history.follow(times_s)
        changes = self._engine_thread.state.changes
        self._stutters.follow(times_s, [change.end_s for change in changes])
        # A finished reply is compared with the limit for the threads that wrote it.
        if times_s and not status.is_busy and figures.threads:
            n_threads = figures.threads
        else:
            n_threads = status.threads
        speed = _speed_of(status, times_s, now_s)
        reached_tps = max(speed.last_10_s, speed.reply)
        ceiling = ceiling_at(
            figures.facts, status.context_used, figures.read_gbps.get(n_threads), reached_tps
        )
        self._measure_memory_if_idle(
            status, figures, speed.reply if n_threads == status.threads else 0.0, now_s
        )
        faults = figures.faults.by_token()
        stutters = self._stutters.found
        changes_during = _changes_during(times_s, changes, status.is_busy)
        kv_change = self._replies.kv_change()
        marked = [*([kv_change] if kv_change is not None else []), *changes_during]
        return PerformanceView(
            status=status,
            figures=figures,
            sample=self._samples[-1] if self._samples else None,
            samples=tuple(islice(self._samples, max(0, len(self._samples) - CORES_WINDOW_S), None)),
            core_map=self._core_map.get(now_s),
            speed=speed,
            rates_tps=tuple(self._history.rates_tps()),
            marked_seconds=tuple(
                int((stutter.end_s - times_s[0]) / BUCKET_S) for stutter in stutters
            ),
            stutter=next(iter(self._stutters.newest(1, faults, list(self._samples))), None),
            n_stutters=self._stutters.count,
            ceiling=ceiling,
            joules_per_token=joules_per_token(
                [sample.energy for sample in self._samples if sample.energy is not None], times_s
            ),
            causes=tuple(
                self._causes(status, figures, n_threads, times_s, speed, now_s, changes_during)
            ),
            changes=tuple((change.end_s - times_s[0], change) for change in marked),
            comparison=self._comparison(times_s, changes_during) or self.compare_kv_types(),
            interface_cost=self.pace.cost,
            slowed_by=self.pace.divisor,
            idle_work=self._engine_thread.idle_work_name,
            today=day_of(time.time()),
        )

    def _comparison(
        self, times_s: Sequence[float], changes: Sequence[ChoiceChange]
    ) -> SpeedComparison | None:
        """Compare the speeds of a reply before and after its changes; None if it has none."""
        if not changes:
            return None
        from app.machine.tuning.speed_comparison import compare_choices  # not for the first frame

        return compare_choices(times_s, changes, partial(_mean_others, list(self._samples)))

    def compare_kv_types(self) -> SpeedComparison | None:
        """Compare the newest reply with the one before, if the KV cache was changed between them.

        None if it was not, or if threads or memory changed while one of them was written.
        """
        self._follow_reply()  # a short one was not sampled
        newest = self._replies.newest
        previous = self._replies.previous
        if newest is None or previous is None or self._replies.kv_change() is None:
            return None
        if newest.is_mixed or previous.is_mixed:
            return None
        from app.machine.tuning.speed_comparison import compare_replies  # not for the first frame

        return compare_replies(previous, newest, partial(_mean_others, list(self._samples)))

    def bound_text(self, tps: float, threads: int) -> str:
        """Say whether memory or the cores bound a speed of the open model; "" if unknown."""
        figures = self._engine_thread.state.figures
        ceiling = ceiling_at(figures.facts, 0, figures.read_gbps.get(threads))
        if ceiling is None:
            return ""
        return bound_text(ceiling.memory_share(tps))

    def _causes(
        self,
        status: EngineStatus,
        figures: EngineFigures,
        n_threads: int,
        times_s: Sequence[float],
        speed: Speed,
        now_s: float,
        changes: Sequence[ChoiceChange],
    ) -> list[Cause]:
        """Return what disturbs the running reply now, or disturbed the last one."""
        if figures.facts is None:
            return []
        tps = 0.0
        if status.activity in (Activity.READING, Activity.WRITING):
            begin_s = now_s - LONG_WINDOW_S
            end_s = now_s
            if status.activity is Activity.WRITING:
                tps = speed.last_10_s
        elif times_s:
            begin_s = times_s[0]
            end_s = times_s[-1]
            tps = speed.reply
        else:
            return []
        usual_threads = 0
        if figures.earlier is not None and status.activity is not Activity.READING:
            usual_threads = figures.earlier.usual.threads
        samples = samples_between(self._samples, begin_s, end_s)
        return [
            *machine_causes(
                samples,
                n_threads,
                usual_clock_ghz(list(self._samples)[-_CLOCK_SAMPLES:]),
                tps * figures.facts.bytes_per_token,
            ),
            *(own_change(changes, begin_s) or fewer_threads(n_threads, usual_threads)),
        ]

    def _measure_memory_if_idle(
        self, status: EngineStatus, figures: EngineFigures, tps: float, now_s: float
    ) -> None:
        """Request a measurement of the memory if its speed is unknown or a reply exceeded it."""
        if status.activity is not Activity.READY or figures.facts is None:
            return
        ceiling = ceiling_at(
            figures.facts, status.context_used, figures.read_gbps.get(status.threads), tps
        )
        is_beaten = ceiling is not None and ceiling.is_beaten
        setup = status.threads, is_beaten
        if (ceiling is None or is_beaten) and now_s >= self._probe_again_s.get(
            setup, float("-inf")
        ):
            # A small model that fits in a cache always exceeds the memory: measure only once.
            if is_beaten:
                self._probe_again_s[setup] = float("inf")
            else:
                self._probe_again_s[setup] = now_s + PROBE_RETRY_S
            self._engine_thread.measure_bandwidth()


def _read_core_map() -> CoreMap:
    from engine.machine.host import core_map  # the first frame would wait for it

    return core_map()


def _mean_others(samples: Sequence[MachineSample], begin_s: float, end_s: float) -> float:
    """Return the cores that other programs used between two times, on average."""
    first = bisect_left(samples, begin_s, key=attrgetter("at_s"))
    readings: list[float] = []
    for sample in islice(samples, first, None):
        if sample.at_s - sample.interval_s > end_s:
            break
        if sample.others_cores is not None:
            readings.append(sample.others_cores)
    return sum(readings) / max(1, len(readings))


def _changes_during(
    times_s: Sequence[float], changes: Sequence[ChoiceChange], is_running: bool
) -> list[ChoiceChange]:
    """Return the changes of a reply that matter for writing."""
    if not times_s:
        return []
    end_s = float("inf")
    if not is_running:
        end_s = times_s[-1]
    return [
        change
        for change in changes
        if change.is_felt_in_writing and times_s[0] <= change.end_s <= end_s
    ]


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
