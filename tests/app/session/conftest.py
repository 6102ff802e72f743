"""The scripted engine of the backend's tests."""

from tests.app.backend.conftest import engine, script

__all__ = ["engine", "script"]
