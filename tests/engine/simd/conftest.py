"""A process that forks for each processor."""

from collections.abc import Iterator

import pytest

from tests.engine.forks import Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    found = Forks()
    yield found
    found.close()
