"""When has the interface done what it was asked for? When nothing is left to run and nothing to draw."""

from __future__ import annotations

import asyncio
import time

from textual._context import active_app
from textual.app import App
from textual.screen import Screen

_MOST_S = 1.0
"""Limit on the wait in seconds, as in Textual: endlessly repeating work is not waited for."""
_QUIET_ROUNDS = 2


async def settled(*_: object) -> None:
    """Let the application run until it waits: for keys, timers or threads."""
    loop, app = asyncio.get_running_loop(), active_app.get()
    until_s, n_quiet = time.monotonic() + _MOST_S, 0
    while n_quiet < _QUIET_ROUNDS and time.monotonic() < until_s:
        await asyncio.sleep(0)
        n_quiet += 1
        if loop._ready:  # type: ignore[attr-defined]
            n_quiet = 0
        elif (screen := _drawing(app)) is not None:
            screen._on_timer_update()
            n_quiet = 0


def _drawing(app: App[object]) -> Screen[object] | None:
    """Return the screen whose next frame is still to come, or what is to be done after it."""
    if app._batch_count or not app.screen_stack:
        return None
    screen = app.screen
    return screen if screen._callbacks or screen._layout_required or screen._dirty_widgets else None
