"""SIGTSTP is obeyed between two events, never in the middle of handing a frame over."""

from __future__ import annotations

import asyncio
import queue
import signal
from collections.abc import Iterator

import pytest

from app.tui.textual_hacks import stop_between_events


@pytest.fixture
def frames() -> Iterator[queue.Queue[None]]:
    """Set the signal back afterwards."""
    before = signal.getsignal(signal.SIGTSTP)
    yield queue.Queue()
    signal.signal(signal.SIGTSTP, before)


async def test_a_stop_waits_for_the_lock_to_be_let_go(frames: queue.Queue[None]) -> None:
    was_held: list[bool] = []
    obeyed = asyncio.Event()

    def obey(*_: object) -> None:
        was_held.append(frames.mutex.locked())
        obeyed.set()

    signal.signal(signal.SIGTSTP, obey)
    stop_between_events()
    with frames.mutex:
        signal.raise_signal(signal.SIGTSTP)
    await asyncio.wait_for(obeyed.wait(), 60)
    assert was_held == [False]
