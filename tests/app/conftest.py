"""Fixtures for the tests of the application: how they wait for the interface, and what it draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from app.program import notices
from app.tui.textual_hacks import ThriftyCompositor, ThriftyStylesheet
from tests.app.settling import draw_changes, drawn_before, put_off, settled

_parsed: dict[tuple[Any, ...], list[RuleSet]] = {}


def _parsed_once(sheet: ThriftyStylesheet, *source: Any, **location: Any) -> list[RuleSet]:
    key = (frozenset(sheet._variables.items()), *source, *location.items())
    if key not in _parsed:
        _parsed[key] = Stylesheet._parse_rules(sheet, *source, **location)
    return _parsed[key]


@pytest.fixture(autouse=True, scope="package")
def screens_for_tests() -> Iterator[None]:
    """Screens in any terminal and on a busy machine, and at less cost."""
    with pytest.MonkeyPatch.context() as patch:
        # Whatever terminal the tests run in, it has more than sixteen colours unless a test says
        # otherwise.
        patch.setenv("COLORTERM", "truecolor")
        # Textual takes a process for idle that used little CPU for 20 ms, which on a busy machine
        # it always did.
        for module in ("textual.app", "textual.pilot"):
            patch.setattr(f"{module}.wait_for_idle", settled)
        # Each key asked every widget whether it had done its work; once the loop is idle all have.
        patch.setattr(Pilot, "_wait_for_screen", settled)
        # Frames that no test looks at.
        for name in ("render_partial_update", "render_full_update"):
            patch.setattr(ThriftyCompositor, name, put_off, raising=False)
        for name in ("press", "resize_terminal", "_post_mouse_events"):
            patch.setattr(Pilot, name, drawn_before(getattr(Pilot, name)))
        # The tests' applications, of which there are many, share what is parsed of the same
        # sources.
        patch.setattr(ThriftyStylesheet, "_parse_rules", _parsed_once)
        yield


@pytest.fixture(autouse=True)
def no_notices_of_other_tests() -> Iterator[None]:
    """Lines about files are forgotten, which a later test's chat would show."""
    yield
    notices.take_all()
    notices.forget_ignored()


@pytest.fixture
def every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each frame is drawn when it would be."""
    monkeypatch.setattr(ThriftyCompositor, "render_partial_update", draw_changes)
    monkeypatch.delattr(ThriftyCompositor, "render_full_update")
