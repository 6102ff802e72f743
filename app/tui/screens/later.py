"""Screens that are imported when they are first shown."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from app.tui.screens.surroundings import Surroundings

if TYPE_CHECKING:
    from app.downloads.job import PullJob


def make_screen(mode: str, around: Surroundings) -> Screen[Any]:
    """Import the screen of a mode and make it: ``models.ModelsScreen`` for "models"."""
    screen: Screen[Any] = getattr(import_module(f"{__package__}.{mode}"), f"{mode.capitalize()}Screen")(around)
    return screen


def inspect_screen(path: Path, title: str, around: Surroundings) -> Screen[Any]:
    """Make the screen of what a file holds; it is shown above a list."""
    from app.tui.screens.inspect import InspectScreen

    return InspectScreen(path, title, around.keymap)


def download_screen(job: PullJob, around: Surroundings) -> Screen[str | None]:
    """Make the screen of a download; it is shown above a list."""
    from app.tui.screens.download import DownloadScreen

    return DownloadScreen(job, around.keymap)
