"""Screens that are imported when they are first shown: one line each."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from app.tui.screens import modes
from app.tui.screens.surroundings import Surroundings

if TYPE_CHECKING:
    from app.downloads.job import PullJob

SCREENS = {
    modes.PERFORMANCE: "performance:PerformanceScreen",
    modes.THREADS: "threads:ThreadsScreen",
    modes.MODELS: "models:ModelsScreen",
    modes.DOCTOR: "doctor:DoctorScreen",
    modes.CONVERSATIONS: "conversations:ConversationsScreen",
}
"""Where each screen with a key of its own is found, in this folder, by its mode. It is made from ``Surroundings``."""


def inspect_screen(path: Path, title: str, around: Surroundings) -> Screen[Any]:
    """Make the screen of what a file holds; it is shown above a list."""
    from app.tui.screens.inspect import InspectScreen

    return InspectScreen(path, title, around.keymap)


def download_screen(job: PullJob, around: Surroundings) -> Screen[str | None]:
    """Make the screen of a download; it is shown above a list."""
    from app.tui.screens.download import DownloadScreen

    return DownloadScreen(job, around.keymap)


def make_screen(mode: str, around: Surroundings) -> Screen[Any]:
    """Import a screen and make it."""
    module, _, name = SCREENS[mode].partition(":")
    screen: Screen[Any] = getattr(import_module(f"{__package__}.{module}"), name)(around)
    return screen
