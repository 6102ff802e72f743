"""Screens: what is composed of which widgets, and what happens on which message.

Each is imported when first shown.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from textual.screen import Screen


def make_screen(mode: str, *arguments: object, kind: str = "") -> Screen[Any]:
    """Import a screen when it is first shown, and make it: ``models.ModelsScreen`` for "models", or
    its ``kind``."""
    make = getattr(import_module(f"{__name__}.{mode}"), kind or f"{mode.capitalize()}Screen")
    screen: Screen[Any] = make(*arguments)
    return screen
