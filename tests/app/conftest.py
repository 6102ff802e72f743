"""Fixtures for the tests of the application: how they wait for the interface."""

from __future__ import annotations

from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from app.tui.textual_hacks import ThriftyStylesheet
from tests.app.frames import note_frames
from tests.app.settling import settled


@pytest.fixture(autouse=True)
def all_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever terminal the tests run in, it has more than sixteen colours unless a test says otherwise."""
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(autouse=True)
def no_guessing_whether_the_program_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual takes a process for idle that used little CPU for 20 ms, which on a busy machine it always did."""
    for module in ("textual.app", "textual.pilot"):
        monkeypatch.setattr(f"{module}.wait_for_idle", settled)


_parsed: dict[tuple[Any, ...], list[RuleSet]] = {}


def _parsed_once(sheet: ThriftyStylesheet, *source: Any, **place: Any) -> list[RuleSet]:
    key = (frozenset(sheet._variables.items()), *source, *place.items())
    if key not in _parsed:
        _parsed[key] = Stylesheet._parse_rules(sheet, *source, **place)
    return _parsed[key]


@pytest.fixture(autouse=True)
def style_sheets_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' applications, of which there are many, share what is parsed of the same sources."""
    monkeypatch.setattr(ThriftyStylesheet, "_parse_rules", _parsed_once)


@pytest.fixture
def every_frame() -> None:
    """For tests of what is drawn when, and of what drawing lays out: replies come to their height so."""


@pytest.fixture(autouse=True)
def frames_noted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a frame are drawn where a test looks at them, or needs every frame."""
    note_frames(monkeypatch, draws_rows="every_frame" in request.fixturenames)
