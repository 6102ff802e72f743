"""Fixtures: a hub with one model, without the tokens, proxies and certificates of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.models.downloads import pull
from app.models.library import listing
from engine.measure.fit import MachineMemory
from tests.app.models.downloads.local_hub import LocalHub
from tests.app.models.downloads.pulling import GIB, NAME, REPOSITORY, content


@pytest.fixture
def clean_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove token and proxy, use the system's certificates, 8 GB of memory and no local models."""
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(pull, "places", lambda directories: [])
    monkeypatch.setattr(listing, "usual_threads", lambda settings: 2)
    monkeypatch.setattr(
        "app.models.library.measure.memory_for_models", lambda: MachineMemory(8 * GIB, 6 * GIB)
    )


@pytest.fixture
def server(clean_network: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """Serve a hub with one model, whose address is in the environment."""
    with LocalHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        server.add(REPOSITORY, NAME, content())
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models"
