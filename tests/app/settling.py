"""When has the interface done what it was asked for? When nothing is left to run and nothing to
draw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from textual._compositor import Compositor
from textual._context import active_app, visible_screen_stack
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip

from app.tui.textual_hacks import ThriftyCompositor

_MOST_S = 1.0
"""Limit on the wait in seconds, as in Textual: endlessly repeating work is not waited for."""
_QUIET_ROUNDS = 2
draw_changes = ThriftyCompositor.render_partial_update


async def settled(*_: object) -> None:
    """Let the application run until it waits: for keys, timers or threads."""
    loop = asyncio.get_running_loop()
    app = active_app.get()
    until_s = time.monotonic() + _MOST_S
    n_quiet = 0
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


def put_off(compositor: ThriftyCompositor, simplify: bool = False) -> object:
    """Take note of what a frame would draw: of all the frames between two actions of a test one is
    drawn, the last."""
    if simplify:  # a picture, which somebody looks at
        return Compositor.render_full_update(compositor, simplify)
    regions = compositor._dirty_regions.copy()
    compositor._dirty_regions.clear()
    compositor.__dict__.setdefault("undrawn", set()).update(regions)
    return "put off" if regions else None


def draw(app: App[Any]) -> None:
    """Draw what was put off."""
    for screen in app.screen_stack[-1:]:
        compositor = screen._compositor
        regions = compositor.__dict__.pop("undrawn", None)
        if regions and isinstance(compositor, ThriftyCompositor):
            compositor._dirty_regions |= regions
            visible_screen_stack.set(app._background_screens)
            draw_changes(compositor)


def drawn_before(act: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Draw before an action what the one before it led to."""

    @wraps(act)
    async def draw_and_act(pilot: Pilot[Any], *arguments: Any, **options: Any) -> Any:
        draw(pilot.app)
        return await act(pilot, *arguments, **options)

    return draw_and_act


def look(app: App[Any]) -> list[Strip]:
    """Draw what a terminal shows, all of it."""
    compositor = app.screen._compositor
    compositor.__dict__.pop("undrawn", None)
    visible_screen_stack.set(app._background_screens)
    return compositor.render_strips()
