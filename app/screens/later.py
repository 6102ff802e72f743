"""Screens that are imported when they are first shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

if TYPE_CHECKING:
    from app.performance.watch import PerformanceWatch

PERFORMANCE_MODE = "performance"
THREADS_MODE = "threads"
MODELS_MODE = "models"
DOCTOR_MODE = "doctor"
CONVERSATIONS_MODE = "conversations"


def later_screens(watch: PerformanceWatch) -> dict[str, Callable[[], Screen[Any]]]:
    """Return what makes each screen that has a key of its own, by the name of its mode."""

    def performance() -> Screen[None]:
        from app.screens.performance import PerformanceScreen

        return PerformanceScreen(watch)

    return {
        PERFORMANCE_MODE: performance,
        THREADS_MODE: _threads,
        MODELS_MODE: _models,
        DOCTOR_MODE: _doctor,
        CONVERSATIONS_MODE: _conversations,
    }


def theme_picker() -> Screen[str | None]:
    """Make the list of themes."""
    from app.screens.theme_picker import ThemePicker

    return ThemePicker()


def _threads() -> Screen[None]:
    from app.screens.threads import ThreadsScreen

    return ThreadsScreen()


def _models() -> Screen[None]:
    from app.screens.models import ModelsScreen

    return ModelsScreen()


def _doctor() -> Screen[None]:
    from app.screens.doctor import DoctorScreen

    return DoctorScreen()


def _conversations() -> Screen[None]:
    from app.screens.conversations import ConversationsScreen

    return ConversationsScreen()
