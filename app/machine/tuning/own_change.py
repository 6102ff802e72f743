"""The user's own change of threads and memory as a cause of another speed."""

from __future__ import annotations

from collections.abc import Sequence

from app.machine.sensors.speed_causes import Cause
from app.machine.tuning.threads_in_use import ChoiceChange, choice_names


def own_change(changes: Sequence[ChoiceChange], begin_s: float) -> list[Cause]:
    """Return the last change of threads and memory since ``begin_s`` as a cause, if there is one.

    It can explain any difference from the usual speed.
    """
    if not changes or changes[-1].end_s < begin_s:
        return []
    before, after = choice_names(changes[-1].before, changes[-1].after)
    return [Cause(f"changed from {before} to {after}", 1.0)]
