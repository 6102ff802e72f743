"""Fixtures for the tests of the application: how they wait for the interface."""

from __future__ import annotations

import pytest

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
