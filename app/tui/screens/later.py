"""Screens that are imported when they are first shown: one line each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from textual.screen import Screen

from app.tui.screens import modes
from app.tui.screens.surroundings import Surroundings

SCREENS = {
    modes.PERFORMANCE: "performance:PerformanceScreen",
    modes.THREADS: "threads:ThreadsScreen",
    modes.MODELS: "models:ModelsScreen",
    modes.DOCTOR: "doctor:DoctorScreen",
    modes.CONVERSATIONS: "conversations:ConversationsScreen",
}
"""Where each screen with a key of its own is found, in this folder, by its mode. It is made from ``Surroundings``."""


def make_screen(mode: str, around: Surroundings) -> Screen[Any]:
    """Import a screen and make it."""
    module, _, name = SCREENS[mode].partition(":")
    screen: Screen[Any] = getattr(import_module(f"{__package__}.{module}"), name)(around)
    return screen
