"""Frames of an application that no terminal shows: when they are drawn, and what is on the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from textual._compositor import ChopsUpdate, Compositor
from textual.app import App
from textual.strip import Strip

_shown: WeakKeyDictionary[Compositor, list[Strip]] | None = None
"""What is drawn of screens whose frames are noted."""


def rows(app: App[Any]) -> list[Strip]:
    """Rows of the top screen, drawn where a frame came since they were asked for."""
    compositor = app.screen._compositor
    if _shown is None:
        return compositor.render_strips()
    if compositor not in _shown:
        _shown[compositor] = compositor.render_strips()
    return _shown[compositor]


def note_frames(monkeypatch: pytest.MonkeyPatch, draws_rows: bool) -> None:
    """Forget rows with every frame; without a terminal a frame needs no rows, a quarter of what a screen costs."""
    shown: WeakKeyDictionary[Compositor, list[Strip]] = WeakKeyDictionary()
    monkeypatch.setattr("tests.app.frames._shown", shown)

    def noted(draw: Callable[..., Any]) -> Callable[..., Any]:
        def frame(compositor: Compositor, simplify: bool = False) -> Any:
            if not compositor._dirty_regions and not simplify:
                return None
            shown.pop(compositor, None)
            if draws_rows or simplify:
                return draw(compositor, **({"simplify": True} if simplify else {}))
            compositor._dirty_regions.clear()
            return ChopsUpdate([], [], [])

        return frame

    for name in ("render_partial_update", "render_full_update"):
        monkeypatch.setattr(Compositor, name, noted(getattr(Compositor, name)))
