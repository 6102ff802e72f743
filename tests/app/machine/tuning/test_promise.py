"""The promise of a search, and what came true of it."""

from __future__ import annotations

from dataclasses import replace

from app.machine.tuning.findings import findings_of
from app.machine.tuning.levels import leveled
from app.machine.tuning.promise import outcome_text, promise_of
from tests.app.machine.tuning.made_reports import NOW, QUIET, report


def test_the_outcome_names_speed_now_before_and_promised() -> None:
    findings = findings_of(leveled(report()), NOW, QUIET)
    assert findings is not None
    promise = promise_of(findings)
    assert promise is not None
    assert outcome_text(promise, 29.06) == "29.1 tok/s, was 24.6 (promised 29.3)"


def test_without_another_speed_there_is_no_promise() -> None:
    findings = findings_of(leveled(report()), replace(NOW, weights="huge"), QUIET)
    assert findings is not None
    assert promise_of(findings) is None
