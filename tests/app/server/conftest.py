"""A server for each test."""

from collections.abc import Iterator

import pytest

from tests.app.fake_engine import Script
from tests.app.server.serving import Serving, serving


@pytest.fixture
def script() -> Script:
    return Script(replies=[["Par", "is", "."]])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, script: Script) -> Iterator[Serving]:
    with serving(monkeypatch, script) as served:
        yield served
