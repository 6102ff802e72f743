"""The measured clock rate is a plausible number of GHz, or None."""

import pytest

from engine.errors import Cancelled
from engine.machine import level
from engine.plan.clock import clock_ghz
from engine.plan.crew import Crew


def test_the_clock_rate_is_plausible() -> None:
    crew = Crew(1)
    clock = clock_ghz(crew)
    crew.close()
    assert clock is not None
    assert 0.01 < clock < 8


def test_no_clock_rate_is_reported_without_known_cycles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(level, "HAS_X86", False)
    assert clock_ghz(Crew(1)) is None


def test_a_cancel_ends_the_clock_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(1)
    walk = crew.run_to_end
    monkeypatch.setattr(crew, "run_to_end", lambda *arguments: (crew.cancel(), walk(*arguments)))
    with pytest.raises(Cancelled):
        clock_ghz(crew)
    crew.close()
