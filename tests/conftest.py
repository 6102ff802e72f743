"""Fixtures for every test: no network, no one's own settings, the shared data where it is there."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No property depends on how fast the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of models, vocabularies, templates and vectors that the project does not contain."""
    here = Path(__file__).resolve().parents[1]
    for place in (os.environ.get("JALOPY_TEST_DATA"), here.parent / "shared" / "data"):
        if place and Path(place).is_dir():
            return Path(place)
    pytest.skip("needs the shared test data: set JALOPY_TEST_DATA to its folder")


@pytest.fixture(autouse=True)
def private_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test away from the settings and conversations of whoever runs it."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
