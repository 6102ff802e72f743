"""Fixtures: a server for each test, and a shared one for tests that change nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.fake_engine import Script
from tests.app.server.serving import Serving, serving
from tests.engine import tiny_gguf


@pytest.fixture
def script() -> Script:
    return Script(replies=[["Par", "is", "."]])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, script: Script) -> Iterator[Serving]:
    with serving(monkeypatch, script) as served:
        yield served


@pytest.fixture(scope="module")
def shared() -> Iterator[Serving]:
    """Server that answers ``Paris.``, shared by tests that change nothing."""
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(patch, Script(replies=[["Par", "is", "."]])) as served,
    ):
        yield served


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with three models and one broken file."""
    directory = tmp_path_factory.mktemp("models")
    for name, quant in (
        ("Big-1B-F16", "F16"),
        ("Small-0.5B-Q8_0", "Q8_0"),
        ("Small-0.5B-Q4_0", "Q4_0"),
    ):
        tiny_gguf.write(directory / f"{name}.gguf", "llama", quant)
    (directory / "broken.gguf").write_bytes(b"GGUF")
    return directory
