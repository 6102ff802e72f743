"""SIGTSTP and SIGCONT are obeyed between two events, never in the middle of handing a frame
over."""

from __future__ import annotations

import asyncio
import queue
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from app.tui.textual_hacks import stop_and_go_on_between_events

SIGNALS = (signal.SIGTSTP, signal.SIGCONT)


@pytest.fixture
def frames() -> Iterator[queue.Queue[None]]:
    """Set the signals back afterwards."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield queue.Queue()
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_waits_for_the_lock_to_be_let_go(
    number: signal.Signals, frames: queue.Queue[None]
) -> None:
    was_held: list[bool] = []
    obeyed = asyncio.Event()

    def obey(*_: object) -> None:
        was_held.append(frames.mutex.locked())
        obeyed.set()

    signal.signal(number, obey)
    stop_and_go_on_between_events(SimpleNamespace(_auto_restart=False))  # type: ignore[arg-type]
    with frames.mutex:
        signal.raise_signal(number)
    await asyncio.wait_for(obeyed.wait(), 60)
    assert was_held == [False]


async def test_a_sigcont_without_a_stop_gives_the_terminal_back_first(
    frames: queue.Queue[None],
) -> None:
    done: list[str] = []
    driver = SimpleNamespace(_auto_restart=True, _must_signal_resume=False)
    driver.suspend_application_mode = lambda: done.append("given back")
    went_on = asyncio.Event()

    def go_on(*_: object) -> None:
        done.append("taken")
        went_on.set()

    signal.signal(signal.SIGCONT, go_on)
    stop_and_go_on_between_events(driver)  # type: ignore[arg-type]
    signal.raise_signal(signal.SIGCONT)
    await asyncio.wait_for(went_on.wait(), 60)
    assert done == ["given back", "taken"]
