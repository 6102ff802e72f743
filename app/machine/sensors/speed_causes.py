"""Sentence that says what bounds the speed of a reply: memory, the cores, or a disturbance.

Each disturbance has the size of its effect, so the largest one can be named. All screens and
``jalopy bench`` say the same sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.machine.sensors.delays import QuotaUse
from app.machine.sensors.page_faults import LEAST_DISK_BYTES_PER_S
from app.machine.sensors.sample import BUSY_LOAD, ClockLimit, MachineSample
from app.machine.sensors.tuning_conditions import QUIET_CORES
from app.text import figures
from app.text.record import record

SLOW_SHARE = 0.85
"""Share of the usual speed below which a reply counts as slow."""
MEMORY_BOUND_SHARE = 0.8
"""Share of the memory's limit from which memory is the bound. The limit itself is measured to
within a tenth.
"""
_CACHED_SHARE = 1.2
"""Share of the memory's limit from which the caches must deliver a part."""
_LARGE_LOSS = 0.15
_SMALL_LOSS = 0.05
"""Loss from which a cause explains a speed that is lower than usual."""
_LARGE_CONTEXT_SHARE = 0.25
_LEAST_INTERFACE_SHARE = 0.2
_SHARED_CORE_LOSS = 0.5
"""Loss by a core of another program in a machine of one core: both share memory and power, even
if no thread waits.
"""
_LOW_CLOCK_SHARE = 0.7
_UNEXPLAINED_CLOCK_SHARE = 0.5
"""Share of the highest clock that many cores may lack together, since it is for one core alone."""
_TOO_HOT = ClockLimit.HEAT.value
_LOW_VOLTAGE = ClockLimit.VOLTAGE.value
_HOT_C = 92.0
_HOT_LOSS = 0.3
"""Estimated loss if the processor is throttled and its clock is unknown."""
_LOW_CLOCK_LOSS = 0.5
"""Estimated loss if the governor keeps the clock at its minimum and the clock is unknown."""
_BATTERY_LOSS = 0.1
"""Estimated loss on battery if the clock is unknown."""
_DISK_BYTES_PER_S = 300e6
"""Speed of a disk, where the system does not tell how long programs wait for it."""
_LARGEST_DISK_LOSS = 0.95


@record
class Cause:
    """Disturbance of a reply, with the size of its effect."""

    text: str
    loss: float
    """Estimated share of the speed that it costs, 0 to 1."""
    is_lasting: bool = False
    """Whether it may have lowered the usual speed, too."""


@record
class SpeedReadings:
    """Readings from which the bound of a speed is told."""

    tps: float
    usual_tps: float = 0.0
    """Usual speed of the model on this machine; 0 if unknown."""
    memory_share: float | None = None
    """Share of the speed that memory allows; None if unknown."""
    context_share: float = 0.0
    """Share of the context in the bytes that each token reads."""
    causes: Sequence[Cause] = ()
    """Disturbances of the time of the reply."""


@record
class SpeedReason:
    """Sentence on what bounds a speed; empty if nothing is known."""

    text: str = ""
    is_slow: bool = False
    """Whether the reply is slower than usual, or disturbed if nothing is known as usual."""


def samples_between(
    samples: Sequence[MachineSample], begin_s: float, end_s: float
) -> list[MachineSample]:
    """Return the samples that cover a part of a period."""
    return [
        sample
        for sample in samples
        if sample.at_s >= begin_s and sample.at_s - sample.interval_s <= end_s
    ]


def speed_reason(readings: SpeedReadings) -> SpeedReason:
    """Say what bounds a speed: the largest cause, and a second one if it is large, too."""
    if readings.tps <= 0:
        return SpeedReason()
    usual_tps = readings.usual_tps
    is_below_usual = 0 < readings.tps < SLOW_SHARE * usual_tps
    disturbances = _disturbances(readings)
    causes = sorted(
        [*disturbances, *_long_context(readings.context_share)], key=lambda cause: -cause.loss
    )
    if is_below_usual:
        named = [cause for cause in causes if cause.loss >= _SMALL_LOSS]
        usually = f"{figures.rate(usual_tps)} tok/s"
        if not named:
            return SpeedReason(f"slower than usual ({usually}), no cause seen", True)
        return SpeedReason(f"{_together(named)} (usually {usually})", True)
    named = [cause for cause in causes if cause.loss >= _LARGE_LOSS]
    if named:
        is_disturbed = any(cause.loss >= _LARGE_LOSS for cause in disturbances)
        return SpeedReason(_together(named), is_slow=is_disturbed and usual_tps <= 0)
    return SpeedReason(bound_text(readings.memory_share))


def _together(causes: Sequence[Cause]) -> str:
    first, *others = causes
    if others and others[0].loss >= max(_LARGE_LOSS, first.loss / 2):
        return f"{first.text}; {others[0].text}"
    return first.text


def bound_text(memory_share: float | None) -> str:
    """Say whether memory or the cores bound an undisturbed speed; "" if that is unknown.

    Args:
        memory_share: share of the speed that memory allows.
    """
    if memory_share is None or memory_share <= 0:
        return ""
    if memory_share >= _CACHED_SHARE:
        return "bound by the cores: the caches deliver more than memory can"
    if memory_share >= MEMORY_BOUND_SHARE:
        return f"bound by memory: {_percent(min(1.0, memory_share))} of what this machine can read"
    return f"bound by the cores: they compute at {_percent(memory_share)} of what memory delivers"


def _disturbances(readings: SpeedReadings) -> list[Cause]:
    """Return the causes with what they can cost at most.

    Nothing costs more than the distance to the memory's limit, and nothing that is not always
    there costs more than the distance to the usual speed.
    """
    most_loss = 1.0
    if readings.memory_share is not None:
        most_loss = max(0.0, 1 - readings.memory_share)
    most_passing_loss = most_loss
    if readings.usual_tps > 0:
        most_passing_loss = min(most_loss, max(0.0, 1 - readings.tps / readings.usual_tps))
    causes = []
    for cause in readings.causes:
        limit = most_passing_loss
        if cause.is_lasting:
            limit = most_loss
        causes.append(Cause(cause.text, min(cause.loss, limit), cause.is_lasting))
    return causes


def _long_context(share: float) -> list[Cause]:
    if share < _LARGE_CONTEXT_SHARE:
        return []
    return [Cause(f"the conversation is long: {_percent(share)} of each token's reading", share)]


def fewer_threads(threads: int, usual_threads: int) -> list[Cause]:
    """Return the cause that fewer threads write than usual, if so."""
    if not 0 < threads < usual_threads:
        return []
    text = f"{figures.counted(threads, 'thread')} instead of {usual_threads}"
    return [Cause(text, 1 - threads / usual_threads)]


def machine_causes(
    samples: Sequence[MachineSample],
    threads: int = 0,
    usual_clock_ghz: float = 0.0,
    weights_bytes_per_s: float = 0.0,
) -> list[Cause]:
    """Return what disturbs the engine, from samples of the time of a reply, largest first.

    Args:
        threads: number of threads that compute; 0 for one on each core.
        usual_clock_ghz: usual clock of working cores, for machines that do not state the highest.
        weights_bytes_per_s: bytes of the model that are read per second; 0 if unknown.
    """
    if not samples:
        return []
    causes = [
        *_from_disk(samples, weights_bytes_per_s),
        *_quota(samples, threads),
        *_too_few_cores(samples, threads),
        *_other_programs(samples, threads),
        *_clock(samples, usual_clock_ghz),
        *_interface(samples, threads),
    ]
    return sorted(causes, key=lambda cause: -cause.loss)


def _from_disk(samples: Sequence[MachineSample], weights_bytes_per_s: float) -> list[Cause]:
    disk_rate = _mean([sample.disk_bytes_per_s for sample in samples])
    swap_rate = _mean([sample.swapped_in_bytes_per_s for sample in samples])
    rate = max(disk_rate, swap_rate)
    if rate < LEAST_DISK_BYTES_PER_S:
        return []
    loss = rate / _DISK_BYTES_PER_S
    stalls = [sample.disk_stall_share for sample in samples]
    if any(stall is not None for stall in stalls):
        loss = _mean(stalls)
    if weights_bytes_per_s > 0:
        # disks are slower than memory, so they take a larger share of the time than of the bytes
        loss = max(loss, rate / weights_bytes_per_s)
    loss = min(_LARGEST_DISK_LOSS, loss)
    if swap_rate >= disk_rate / 2:
        text = f"memory is short: {figures.byte_size(swap_rate)}/s from swap"
    else:
        text = f"reading {figures.byte_size(disk_rate)}/s from disk"
    return [Cause(text, loss, is_lasting=True)]


def _quota(samples: Sequence[MachineSample], threads: int) -> list[Cause]:
    quota = _spent_quota(samples)
    n_cores = _n_cores(samples)
    n_threads = min(threads or n_cores, n_cores)
    if quota is None or quota.cores >= n_threads:
        return []
    loss = quota.spent_share * (1 - quota.cores / n_threads)
    text = f"a CPU quota allows {quota.cores:.1f} of {figures.counted(n_cores, 'core')}"
    return [Cause(text, loss, is_lasting=True)]


def _spent_quota(samples: Sequence[MachineSample]) -> QuotaUse | None:
    """Return the quota with its mean use; None if there is none, or it is hardly ever used up."""
    quotas = [sample.quota for sample in samples if sample.quota is not None]
    spent_share = _mean([quota.spent_share for quota in quotas])
    if spent_share < _SMALL_LOSS:
        return None
    return QuotaUse(quotas[-1].cores, spent_share)


def _n_cores(samples: Sequence[MachineSample]) -> int:
    return max(sample.n_allowed_cores or len(sample.core_loads) for sample in samples)


def _too_few_cores(samples: Sequence[MachineSample], threads: int) -> list[Cause]:
    n_cores = _n_cores(samples)
    if not 0 < n_cores < threads:
        return []
    text = f"{threads} threads share {figures.counted(n_cores, 'core')}"
    return [Cause(text, 1 - n_cores / threads, is_lasting=True)]


def _other_programs(samples: Sequence[MachineSample], threads: int) -> list[Cause]:
    other_cores = _mean([sample.others_cores for sample in samples])
    n_cores = _n_cores(samples)
    if other_cores <= QUIET_CORES:
        return []
    text = f"other programs use {other_cores:.1f} cores"
    if n_cores:
        text = f"other programs use {other_cores:.1f} of {figures.counted(n_cores, 'core')}"
    loss = _SHARED_CORE_LOSS * other_cores / max(1, n_cores)
    if n_cores:
        loss = max(loss, _lost_to_others(samples, other_cores, n_cores, threads or n_cores))
    return [Cause(text, min(1.0, loss))]


def _lost_to_others(
    samples: Sequence[MachineSample], other_cores: float, n_cores: int, threads: int
) -> float:
    """Return the share of time for which a thread has no core because of other programs."""
    waits = [sample.waiting_share for sample in samples]
    quota = _spent_quota(samples)
    if quota is None and any(wait is not None for wait in waits):
        # all threads wait for the one that has lost its core
        stolen_cores = _mean([sample.stolen_cores for sample in samples])
        drawing = _mean([sample.interface_share for sample in samples])
        return _mean(waits) - drawing + stolen_cores / threads
    n_wanted = float(threads)
    if quota is not None:
        # a quota that is used up leaves cores to the other programs, and causes waits of its own
        n_wanted = min(quota.cores, threads)
    return max(0.0, other_cores + n_wanted - n_cores) / threads


def _clock(samples: Sequence[MachineSample], usual_clock_ghz: float) -> list[Cause]:
    clock_ghz = _mean([sample.clock_ghz for sample in samples])
    highest_ghz = max((sample.most_clock_ghz or 0.0 for sample in samples), default=0.0)
    highest_ghz = highest_ghz or usual_clock_ghz
    reason = _clock_reason(samples)
    if clock_ghz <= 0 or highest_ghz <= 0:
        texts = {
            _TOO_HOT: ("the processor is too hot", _HOT_LOSS),
            _LOW_VOLTAGE: ("the power supply gives too little voltage", _HOT_LOSS),
            "governor powersave": ("the governor powersave keeps the clock low", _LOW_CLOCK_LOSS),
            "on battery": ("the machine runs on battery", _BATTERY_LOSS),
        }
        return [Cause(*texts[reason], is_lasting=True)] if reason else []
    share = clock_ghz / highest_ghz
    if share >= _least_clock_share(samples, reason):
        return []
    text = f"the processor runs at {clock_ghz:.1f} of {highest_ghz:.1f} GHz"
    if reason:
        text = f"{text}: {reason}"
    # without a reason, the clock may be what all cores together usually reach
    return [Cause(text, 1 - share, is_lasting=bool(reason))]


def _least_clock_share(samples: Sequence[MachineSample], reason: str) -> float:
    """Return the share of the highest clock from which a clock is not low."""
    if reason in (_TOO_HOT, _LOW_VOLTAGE):
        if any(sample.throttled or sample.clock_limit for sample in samples):
            return 1.0 - _SMALL_LOSS
        return SLOW_SHARE
    if reason:
        return _LOW_CLOCK_SHARE
    return _UNEXPLAINED_CLOCK_SHARE


def _clock_reason(samples: Sequence[MachineSample]) -> str:
    """Return why the clock may be low; "" if no reason is known."""
    last = samples[-1]
    limits = {sample.clock_limit for sample in samples}
    if ClockLimit.VOLTAGE in limits:
        return _LOW_VOLTAGE
    if ClockLimit.HEAT in limits:
        return _TOO_HOT
    hottest_c = max((sample.temperature_c or 0.0 for sample in samples), default=0.0)
    if any(sample.throttled for sample in samples) or hottest_c >= _HOT_C:
        return _TOO_HOT
    if last.governor is not None and last.governor.holds_clock_down:
        return "governor powersave"
    if last.battery is not None and last.battery.on_mains is False:
        return "on battery"
    return ""


def _interface(samples: Sequence[MachineSample], threads: int) -> list[Cause]:
    share = _mean([sample.interface_share for sample in samples])
    n_cores = _n_cores(samples)
    if share < _LEAST_INTERFACE_SHARE or (threads and threads < n_cores):
        return []
    return [Cause(f"drawing the screen takes {_percent(share)} of a core", min(1.0, share))]


def usual_clock_ghz(samples: Sequence[MachineSample]) -> float:
    """Return the usual clock of working cores; 0 if unknown.

    An idle machine's single core may run faster.
    """
    import statistics  # a module import would delay the first frame

    clocks = [
        sample.clock_ghz
        for sample in samples
        if sample.clock_ghz and max(sample.core_loads, default=1.0) >= BUSY_LOAD
    ]
    if clocks:
        return statistics.median_high(clocks)
    return 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    if not known:
        return 0.0
    return sum(known) / len(known)
