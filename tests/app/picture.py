"""Pictures of screens as text files: what stands in ``pictures/`` is what the terminal shows.

``make pictures`` draws them anew; look at the difference before keeping it.
"""

from __future__ import annotations

import difflib
import os
import time
from pathlib import Path

from rich.color import ColorType
from rich.style import Style

from tests.app.chat_driver import Driver

_FOLDER = Path(__file__).parent / "pictures"
_QUIET_S = 0.35
"""Longer than three drains of the engine's messages."""


def picture_of(text: str) -> str:
    """Take out what differs from one run to the next: the last eighth of a scroll bar."""
    return "\n".join(line.rstrip(" ▁▂▃▄▅▆▇█") for line in text.splitlines()) + "\n"


async def settled(driver: Driver) -> str:
    """Wait until the screen stays as it is, and return it."""
    shown, since_s = "", 0.0

    def is_quiet() -> bool:
        nonlocal shown, since_s
        now = picture_of(driver.screen_text())
        if now != shown:
            shown, since_s = now, time.monotonic()
        return time.monotonic() - since_s >= _QUIET_S

    await driver.until(is_quiet, "the screen settles")
    return shown


def check_picture(name: str, text: str) -> None:
    """Compare with the kept picture."""
    path = _FOLDER / f"{name}.txt"
    if os.environ.get("JALOPY_WRITE_PICTURES"):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"draw it: make pictures ({path.name})"
    kept = path.read_text(encoding="utf-8")
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), path.name, "shown", lineterm="", n=0)
    assert text == kept, "\n".join(lines)


def colours_of(driver: Driver) -> set[ColorType]:
    """Return the kinds of colours on the screen."""
    kinds: set[ColorType] = set()
    for strip in driver.app.screen._compositor.render_strips():
        for segment in strip:
            style = segment.style or Style()
            kinds |= {colour.type for colour in (style.color, style.bgcolor) if colour is not None}
    return kinds
