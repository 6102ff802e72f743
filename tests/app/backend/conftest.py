"""Fixtures: a scripted engine, whose script a test module may replace."""

from collections.abc import Iterator

import pytest

from tests.app.backend.engine_driver import Engine
from tests.app.fake_engine import Script


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def engine(script: Script) -> Iterator[Engine]:
    scripted_engine = Engine(script)
    yield scripted_engine
    scripted_engine.close()
