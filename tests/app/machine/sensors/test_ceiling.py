import pytest

from app.machine.sensors.records import ceiling_at
from tests.app.machine.sensors.views import FACTS


def test_the_ceiling_falls_as_the_context_grows():
    empty = ceiling_at(FACTS, 0, 12.0)
    full = ceiling_at(FACTS, 4096, 12.0)
    assert empty.tps == pytest.approx(12e9 / 1_890_000_000)
    assert full.tps == pytest.approx(12e9 / (1_890_000_000 + 4096 * (112 << 10)))
    assert empty.share(empty.tps / 2) == pytest.approx(0.5)


def test_the_ceiling_is_never_below_the_reached_speed():
    higher = ceiling_at(FACTS, 0, 12.0, reached_tps=9.0)
    assert (higher.tps, higher.is_beaten, higher.share(9.0), higher.share(9.5)) == (
        9.0,
        True,
        1.0,
        1.0,
    )
    lower = ceiling_at(FACTS, 0, 12.0, reached_tps=3.0)
    assert (lower.tps, lower.is_beaten) == (pytest.approx(12e9 / 1_890_000_000), False)


def test_without_a_measurement_or_a_model_there_is_no_ceiling():
    assert ceiling_at(FACTS, 0, None) is None
    assert ceiling_at(FACTS, 0, 0.0) is None
    assert ceiling_at(None, 0, 12.0) is None
