"""Fixtures: the scripted engine of the backend tests."""

from tests.app.backend.conftest import engine, script

__all__ = ["engine", "script"]
