"""Performance views with fixed figures, as the screens get them."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from typing import Any

from app.backend.status import Activity, EngineStatus
from app.machine.sensors.daily_speeds import DailySpeeds, ReplyConditions
from app.machine.sensors.energy import EnergyReading, EnergyScope
from app.machine.sensors.records import Ceiling, EngineFigures, ModelFacts, PhaseCost, TimeSpent
from app.machine.sensors.reply_history import Basis, PastSpeeds, Speeds
from app.machine.sensors.sample import Battery, Governor, MachineSample
from app.machine.sensors.token_speed import Stutter
from app.machine.tuning.speed_comparison import ChoiceSpeed, SpeedComparison, Verdict
from app.machine.tuning.threads_in_use import ChoiceChange
from app.program.state import TunedChoice
from app.tui.speed.watch import PerformanceView, Speed

GIB = 1 << 30

FACTS = ModelFacts(
    identity="0123456789abcdef",
    weights_mode="mmap",
    weights_bytes=2 * GIB,
    bytes_per_token=1_890_000_000,
    kv_bytes=118 << 20,
    kv_bytes_per_position=112 << 10,
    resident_weight_bytes=lambda: 2 * GIB,
    resident_kv_bytes=lambda: 118 << 20,
)
SPENT = TimeSpent(
    waited_s=0.0,
    disk_s=0.4,
    prefill_s=21.6,
    first_s=0.0,
    decode_s=21.1,
    interface_s=0.8,
    prompt_tokens=840,
    reused_tokens=31,
    tokens=214,
    disk_pages=212,
)
SAMPLE = MachineSample(
    at_s=100.0,
    interval_s=1.0,
    core_loads=(1.0, 0.97, 0.02, 0.0),
    others_cores=0.1,
    clock_ghz=2.5,
    most_clock_ghz=2.9,
    temperature_c=71.0,
    throttled=0,
    governor=Governor("powersave", "acpi-cpufreq"),
    battery=Battery(83.0, False),
    weights_resident_bytes=2 * GIB,
    kv_resident_bytes=118 << 20,
    own_bytes=141 << 20,
    available_bytes=int(2.6 * GIB),
    swap_used_bytes=0,
    disk_bytes_per_s=0.0,
    energy=EnergyReading(EnergyScope.MACHINE, 40.0, 100.0, 840.0, 14.0, 7800.0),
    threads_working=2,
    interface_share=0.02,
)
PHASES = (
    PhaseCost("feed-forward", 118.0, 0.60, 11.9),
    PhaseCost("qkv", 27.0, 0.14, 11.2),
    PhaseCost("attention", 14.0, 0.07, None),
    PhaseCost("attention output", 15.0, 0.08, 11.6),
    PhaseCost("output head", 19.0, 0.10, 12.4),
    PhaseCost("sampling", 2.0, 0.01, None),
    PhaseCost("interface", 0.2, 0.001, None),
)
STUTTER = Stutter(token=57, begin_s=41.0, end_s=41.8)
TODAY = date(2026, 11, 28)


def busy_weeks() -> DailySpeeds:
    """Return a history of 80 days: faster since tuning, with a new version and slow days."""
    noon = datetime.combine(TODAY, time(12))
    history = DailySpeeds()
    for n_days_ago in range(80, -1, -1):
        for n in range(3):
            if n_days_ago == 41 and not n:
                history = replace(history, is_tuned_since=True)
            base_tps = 4.2
            if n_days_ago <= 41:
                base_tps = 4.9
            is_quiet = n_days_ago % 13 != 5
            tps = base_tps * (1 + 0.04 * (n - 1)) * (1 if is_quiet else 0.6)
            conditions = ReplyConditions(2, n_days_ago == 9, is_quiet, f"0.{n_days_ago < 20:d}")
            if 50 <= n_days_ago <= 60:
                continue
            finished = noon - timedelta(days=n_days_ago, hours=-n)
            history = history.with_reply(finished.timestamp(), tps, conditions)
    return history


def view(**changes: Any) -> PerformanceView:
    """Return the view of a reply at 5 tokens a second with all readings; ``changes`` replace
    fields."""
    performance_view = PerformanceView(
        status=EngineStatus(Activity.WRITING, threads=2, context_used=840, n_ctx=4096),
        figures=EngineFigures(
            FACTS,
            PHASES,
            PHASES,
            last_reply=SPENT,
            earlier=PastSpeeds(
                Speeds(4.9, 30.0, 2, Basis.MEASURED, Basis.MEASURED), 14, 5.3, 1_700_000_000.0
            ),
            read_gbps={2: 12.1},
            daily=busy_weeks(),
        ),
        sample=SAMPLE,
        speed=Speed(5.1, 5.1, 5.0, 39.0),
        rates_tps=(4.8, 5.1, 5.2, 1.0, 5.1),
        marked_seconds=(3,),
        stutter=(STUTTER, "212 pages from disk"),
        n_stutters=1,
        ceiling=Ceiling(1_984_000_000, 12.1),
        joules_per_token=2.8,
        interface_cost=0.02,
        today=TODAY.toordinal(),
    )
    return dataclasses.replace(performance_view, **changes)


def empty_view() -> PerformanceView:
    """Return a view without a model and without a sample."""
    return PerformanceView(EngineStatus(), EngineFigures())


def changed_view() -> PerformanceView:
    """Return the view of a reply that was written with 2, 1 and 2 threads, then in huge pages."""
    two = TunedChoice(2, 2, weights="mmap")
    one = TunedChoice(1, 2, weights="mmap")
    huge = TunedChoice(2, 2, weights="huge")
    changes = ((18.0, two, one), (31.0, one, two), (47.0, two, huge))
    speeds = ChoiceSpeed(huge, 192, 5.9, 0.1), ChoiceSpeed(two, 192, 5.1, 0.1)
    second_rates = (5.0, 5.1, 5.2, 5.1)
    return view(
        rates_tps=(
            *second_rates * 4,
            *(5.1, 4.6),
            *(2.6, 2.7, 2.6, 2.7) * 3,
            *(3.9, 5.0),
            *second_rates * 3,
            *(5.1, 2.0),
            *(5.8, 5.9, 6.0) * 5,
        ),
        marked_seconds=(),
        stutter=None,
        n_stutters=0,
        speed=Speed(5.9, 5.9, 4.7, 39.0),
        changes=tuple(
            (second, ChoiceChange(0.0, 0.0, before, after)) for second, before, after in changes
        ),
        comparison=SpeedComparison(speeds, Verdict.FASTER, 1.157, is_final=True),
    )
