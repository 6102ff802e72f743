"""Fixtures for the tests of the interface."""

from collections.abc import Iterator

import pytest

from tests.app.chat_terminal import ForkServer


@pytest.fixture(scope="package")
def fork_server() -> Iterator[ForkServer]:
    """Starts the program on terminals."""
    server = ForkServer()
    yield server
    server.close()
