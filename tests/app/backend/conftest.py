"""A scripted engine for every test that asks for one; a module may name another script."""

from collections.abc import Iterator

import pytest

from tests.app.backend.engine_driver import Engine
from tests.app.fake_engine import Script


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def engine(script: Script) -> Iterator[Engine]:
    made = Engine(script)
    yield made
    made.close()
