import pytest

from app.machine.records import ceiling_at
from tests.app.machine.views import FACTS


def test_the_ceiling_falls_as_the_context_grows():
    empty, full = ceiling_at(FACTS, 0, 12.0), ceiling_at(FACTS, 4096, 12.0)
    assert empty.tps == pytest.approx(12e9 / 1_890_000_000)
    assert full.tps == pytest.approx(12e9 / (1_890_000_000 + 4096 * (112 << 10)))
    assert empty.share(empty.tps / 2) == pytest.approx(0.5)


def test_without_a_measurement_or_a_model_there_is_no_ceiling():
    assert ceiling_at(FACTS, 0, None) is None
    assert ceiling_at(FACTS, 0, 0.0) is None
    assert ceiling_at(None, 0, 12.0) is None
