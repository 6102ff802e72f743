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
_has_rows = False


def rows(app: App[Any]) -> list[Strip]:
    """Rows of the top screen, drawn where a frame came since they were asked for."""
    compositor = app.screen._compositor
    if _shown is None:
        return compositor.render_strips()
    if compositor not in _shown:
        _shown[compositor] = compositor.render_strips()
    return _shown[compositor]


def note_frames(patch: pytest.MonkeyPatch) -> None:
    """Forget rows with every frame, which has none itself: they are a quarter of what a screen costs."""
    shown: WeakKeyDictionary[Compositor, list[Strip]] = WeakKeyDictionary()
    patch.setattr("tests.app.frames._shown", shown)

    def noted(draw: Callable[..., Any]) -> Callable[..., Any]:
        def frame(compositor: Compositor, **options: Any) -> Any:
            if options.get("simplify"):
                return draw(compositor, **options)
            if not compositor._dirty_regions:
                return None
            shown.pop(compositor, None)
            if _has_rows:
                return draw(compositor, **options)
            compositor._dirty_regions.clear()
            return ChopsUpdate([], [], [])

        return frame

    for name in ("render_partial_update", "render_full_update"):
        patch.setattr(Compositor, name, noted(getattr(Compositor, name)))


def give_rows(patch: pytest.MonkeyPatch) -> None:
    """Draw every frame as for a terminal."""
    patch.setattr("tests.app.frames._has_rows", True)
