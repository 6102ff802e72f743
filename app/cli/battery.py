"""``jalopy tune --battery``: the thread count with the least energy per token."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import Any

from app.backend.local import engine_access
from app.backend.local.battery_run import BatteryRun
from app.backend.reply import Clock
from app.backend.work_thread import WorkThread
from app.cli.output import ProgressLine
from app.machine.sensors.energy import EnergyMeter
from app.machine.sensors.tuning_conditions import watch_machine
from app.machine.tuning.battery_life import (
    EnergyRun,
    battery_bars,
    battery_headline,
    energy_counts,
)
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.glyphs import choose_glyphs

_CONTEXT = 128
_MAX_COLUMNS = 78


def show_battery(
    engine: WorkThread, model: Any, settings: Settings, progress: ProgressLine, clock: Clock
) -> int:
    """Measure and print the energy per token of each thread count; nothing is saved.

    Raises:
        EngineError: the model cannot be used.
        Refusal: this machine does not tell its power, or the measurement was stopped.
    """
    counts = energy_counts(model.most_threads, model.threads)
    in_use = model.threads
    session = engine.run(lambda: model.session(_CONTEXT, engine_access.kv_type_of(settings, model)))
    battery_run = BatteryRun(model, session, counts, EnergyMeter().read, clock)

    watch = watch_machine()

    def measure() -> EnergyRun:
        run = EnergyRun(counts)
        try:
            watch.begin()
            for run in battery_run.run():
                if run.is_over:
                    run = replace(run, others_cores=watch.end().disturbing_cores)
                else:
                    progress.show(battery_headline(run))
        finally:
            session.close()
        return run

    run = engine.run(measure, on_interrupt=battery_run.cancel)
    progress.clear()
    if run.trouble:
        raise Refusal(f"jalopy tune: {battery_headline(run)}")
    if not run.is_over:
        raise Refusal("jalopy tune: the measurement was stopped", exit_codes.INTERRUPTED)
    glyphs = choose_glyphs(encoding=sys.stdout.encoding)
    columns = min(_MAX_COLUMNS, shutil.get_terminal_size((80, 24)).columns - 1)
    print(battery_headline(run))
    print(f"\nenergy per token, J ({run.scope})")
    for bar_line in battery_bars(run, in_use, columns, glyphs):
        print(bar_line.text)
    if run.is_reliable and run.thriftiest not in (None, in_use):
        print(f"\nTo use it: --threads {run.thriftiest}")
    return exit_codes.OK
