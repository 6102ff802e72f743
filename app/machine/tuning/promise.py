"""The promise of a search, and what came true of it in the next reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.program.state import TunedChoice
from app.text import figures
from app.text.record import record
from engine.tuning.report import DECODE

if TYPE_CHECKING:
    from app.machine.tuning.findings import Findings

LEAST_TOKENS = 50
"""Shorter replies tell too little about the speed."""


@record
class TuningPromise:
    """Speed that a search promised for a choice."""

    choice: TunedChoice
    was_tps: float
    promised_tps: float


def promise_of(findings: Findings) -> TuningPromise | None:
    """Return the promise of the best choice; None if it promises no other speed of writing."""
    from app.machine.tuning.findings import WORTH_NAMING  # NumPy would delay the first frame

    was_tps = findings.now_tps[DECODE]
    promised_tps = findings.best_tps[DECODE]
    if not was_tps or not promised_tps or abs(findings.gain(DECODE)) < WORTH_NAMING:
        return None
    return TuningPromise(findings.best, was_tps, promised_tps)


def outcome_text(promise: TuningPromise, tps: float) -> str:
    """Return what came true, such as "29.1 tok/s, was 24.6 (promised 29.3)"."""
    was, promised = figures.rate(promise.was_tps), figures.rate(promise.promised_tps)
    return f"{figures.rate(tps)} tok/s, was {was} (promised {promised})"
