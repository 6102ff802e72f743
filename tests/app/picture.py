"""Pictures of screens: text files in ``pictures/`` with the text that a terminal shows.

Each scene has a file with a section for each kind of terminal. Below the text, the words of each
colour and attribute are listed. ``make pictures`` draws all pictures again; look at the differences
before you commit them.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.color import Color, ColorType
from rich.segment import Segment
from rich.style import Style

from tests.app.chat_driver import Driver
from tests.app.settling import look

FOLDER = Path(__file__).parent / "pictures"
IS_DRAWING = bool(os.environ.get("JALOPY_WRITE_PICTURES"))
_HEADING = "=== "
_QUIET_S = 0.35
"""Seconds without a change, longer than three polls of the engine."""
_PATIENCE_S = 60.0
_PAUSES = 20
_ATTRIBUTES = ("bold", "dim", "italic", "underline", "reverse", "strike")


_SCROLL_BAR_ENDS = re.compile(" [▁▂▃▄▅▆▇](?= ?[│|])")


def text_of(driver: Driver) -> str:
    """Return the text of the terminal without the ends of scroll bars, which depend on colour."""
    lines = (_SCROLL_BAR_ENDS.sub("  ", line) for line in driver.screen_text().splitlines())
    return "\n".join((line[:-1] + line[-1:].strip("▁▂▃▄▅▆▇█")).rstrip() for line in lines) + "\n"


def styles_of(driver: Driver) -> str:
    """Return a line for each style with the words that have it."""
    words: dict[str, list[str]] = {}
    for segment in _runs(driver):
        name = _name_of(segment.style or Style())
        text = segment.text.strip(" ▁▂▃▄▅▆▇█")
        if name and text:
            words.setdefault(name, []).append(text)
    return "".join(f"{name}: {' | '.join(dict.fromkeys(words[name]))}\n" for name in sorted(words))


def _runs(driver: Driver) -> Iterator[Segment]:
    for strip in look(driver.app):
        yield from Segment.simplify(Segment(s.text, _without_meta(s.style)) for s in strip)


def _without_meta(style: Style | None) -> Style:
    style = style or Style()
    attributes = {name: True for name in _ATTRIBUTES if getattr(style, name)}
    return Style(color=style.color, bgcolor=style.bgcolor, **attributes)


def _name_of(style: Style) -> str:
    words = [name for name in _ATTRIBUTES if getattr(style, name)]
    if style.color is not None and not style.color.is_default:
        words.append(_colour_name(style.color))
    if style.bgcolor is not None and not style.bgcolor.is_default:
        words.append(f"on {_colour_name(style.bgcolor)}")
    return " ".join(words)


def _colour_name(colour: Color) -> str:
    return colour.name


def kinds_of_colours(driver: Driver) -> set[ColorType]:
    """Return the types of colours on the screen."""
    styles = [segment.style or Style() for segment in _runs(driver)]
    return {
        colour.type
        for style in styles
        for colour in (style.color, style.bgcolor)
        if colour is not None
    }


async def settled(driver: Driver, look: Callable[[Driver], str]) -> str:
    """Wait until a value stops changing, and return it."""
    frame = ""
    since_s = 0.0

    def is_quiet() -> bool:
        nonlocal frame, since_s
        now = look(driver)
        if now != frame:
            frame = now
            since_s = time.monotonic()
        return time.monotonic() - since_s >= _QUIET_S

    await driver.until(is_quiet, "the screen settles")
    return frame


class Picture:
    """File with the pictures of a scene."""

    def __init__(self, name: str) -> None:
        self._path = FOLDER / f"{name}.txt"

    async def check(
        self, section: str, driver: Driver, look: Callable[[Driver], str] = text_of
    ) -> str:
        """Wait until the screen looks like its picture, or save the picture when drawing."""
        if IS_DRAWING:
            for _ in range(_PAUSES):  # a screen below a modal one is drawn after it
                await driver.pilot.pause()
            actual = await settled(driver, look)
            self._keep(section, actual)
            return actual
        expected = self.sections().get(section)
        assert expected is not None, f"draw it: make pictures ({self._path.name}, {section})"
        give_up_s = time.monotonic() + _PATIENCE_S
        actual = look(driver)
        while actual != expected and time.monotonic() < give_up_s:
            await driver.pilot.pause()
            actual = look(driver)
        assert actual == expected, self._difference(section, expected, actual)
        return actual

    def sections(self) -> dict[str, str]:
        """Return the saved pictures by their headings."""
        if not self._path.is_file():
            return {}
        sections = re.split(
            f"^{_HEADING}", self._path.read_text(encoding="utf-8"), flags=re.MULTILINE
        )[1:]
        return {
            heading: body for heading, _, body in (section.partition("\n") for section in sections)
        }

    def _keep(self, section: str, content: str) -> None:
        sections = self.sections() | {section: content}
        FOLDER.mkdir(exist_ok=True)
        written = "".join(f"{_HEADING}{heading}\n{body}" for heading, body in sections.items())
        self._path.write_text(written, encoding="utf-8")

    def _difference(self, section: str, expected: str, actual: str) -> str:
        names = f"{self._path.name} ({section})", "shown (make pictures keeps it)"
        return "\n".join(
            difflib.unified_diff(
                expected.splitlines(), actual.splitlines(), *names, lineterm="", n=0
            )
        )
