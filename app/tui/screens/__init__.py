"""Screens of the terminal application, each imported when it is first shown."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from textual.screen import Screen


def make_screen(mode: str, *arguments: object, kind: str = "") -> Screen[Any]:
    """Import a screen's module and create the screen.

    Args:
        mode: name of the module, such as "models".
        arguments: arguments of the class.
        kind: name of the class; "ModelsScreen" for "models" by default.
    """
    screen_class = getattr(
        import_module(f"{__name__}.{mode}"), kind or f"{mode.capitalize()}Screen"
    )
    screen: Screen[Any] = screen_class(*arguments)
    return screen
