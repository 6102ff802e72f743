"""Starts the chat as ``jalopy MODEL`` does, step by step, and tells when each step was done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

Tell = Callable[[str], None]


def run(events_fd: int, model: str) -> int:
    """Start, and tell the time of every step as one JSON object a line."""

    def tell(step: str) -> None:
        now_s = time.perf_counter()  # the system's monotonic clock, which the parent reads as well
        os.write(events_fd, f'{{"event": "step", "step": "{step}", "at_s": {now_s}}}\n'.encode())

    tell("Python")
    import_module("app.cli.dispatch")
    from app.backend.local.engine_access import glance_at_model
    from app.machine.sensors.low_power import prepare_environment
    from app.models.library.choose_model import choose_model
    from app.program import garbage
    from app.program.settings import load_settings
    from app.tui.start import import_textual

    tell("command line")
    settings = load_settings()
    tell("settings")
    path = choose_model(model, settings, glance_at_model)
    tell("a glance at the model")
    prepare_environment(settings.low_power)
    tell("cores and battery")
    garbage.postpone()
    import_textual()
    tell("Textual")
    from app.tui.app import JalopyApp

    tell("the application")
    _show(JalopyApp(settings, Path(path) if path else None), tell)
    return 0


def _show(application: object, tell: Tell) -> None:
    """Run the application; the parent sees the first frame itself, and ends this process then."""
    from app.tui.chat.screen import ChatScreen

    laid_out = ChatScreen.on_mount

    def on_mount(screen: ChatScreen) -> None:
        laid_out(screen)
        tell("style sheets and widgets")

    ChatScreen.on_mount = on_mount  # type: ignore[method-assign, assignment]
    application.run()  # type: ignore[attr-defined]
