"""``jalopy tune --show``: a race of thread counts, replayed side by side."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

from app.backend.local import engine_access
from app.backend.local.race import RaceRun
from app.backend.reply import Clock
from app.backend.work_thread import WorkThread
from app.cli.output import ProgressLine
from app.machine.tuning.race import Race, figure_lines, race_counts, race_rows
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.figures import counted
from app.text.glyphs import choose_glyphs

_FRAME_S = 0.05
_LEAST_ROWS = 6


def show_race(
    engine: WorkThread, model: Any, settings: Settings, progress: ProgressLine, clock: Clock
) -> int:
    """Write a sentence with each thread count, and replay them in a terminal; in a pipe, print the
    figures alone.

    Raises:
        EngineError: the model cannot be used.
        Refusal: the race was stopped.
    """
    counts = race_counts(model.most_threads, model.threads)
    run = RaceRun(model, engine_access.kv_type_of(settings, model), counts, clock)

    def write() -> Race:
        race = Race(counts)
        for race in run.run():
            if not race.is_over:
                count = counted(counts[len(race.lanes)], "thread")
                progress.show(f"one sentence with {count}")
        return race

    race = engine.run(write, on_interrupt=run.cancel)
    progress.clear()
    if not race.is_over:
        raise Refusal("jalopy tune: the race was stopped", exit_codes.INTERRUPTED)
    if sys.stdout.isatty():
        _replay(race)
    for line in figure_lines(race):
        print(line, flush=True)
    return exit_codes.OK


def _replay(race: Race) -> None:
    """Draw the race in the rows below the cursor, at the speed at which it was written."""
    size = shutil.get_terminal_size((80, 24))
    glyphs = choose_glyphs(encoding=sys.stdout.encoding)
    n_rows = max(_LEAST_ROWS, size.lines - len(race.lanes) - 3)
    began_s = time.monotonic()
    elapsed_s = 0.0
    is_first = True
    while is_first or elapsed_s < race.duration_s:
        elapsed_s = time.monotonic() - began_s
        rows = race_rows(race, elapsed_s, size.columns - 1, n_rows, glyphs)
        up = "" if is_first else f"\x1b[{len(rows)}A"
        print(up + "".join(f"\x1b[2K{row}\n" for row in rows), end="", flush=True)
        is_first = False
        time.sleep(_FRAME_S)
