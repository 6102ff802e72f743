"""Letters of the Linux console: signs that its fonts lack, or that differ from the plain frames."""

from __future__ import annotations

import re

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_SEPARATOR = re.compile(r"(?<!\w)·|·(?!\w)")
"""Dot between words; within a word it is a letter."""
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("─━═╌┄", "-"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╞╡╪", "+"),
        "‹": "<",
        "›": ">",
        "…": ".",
    }
)
"""A plain letter of the same width for each sign."""


def plain_letters(text: str) -> str:
    """Return a text in letters that every console has; its width stays the same."""
    if text.isascii():
        return text
    return _SEPARATOR.sub("-", text).translate(_PLAIN)


class ConsoleLetters(LineFilter):
    """Filter that draws every line in letters of the console."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in plain letters."""
        return [Segment(plain_letters(text), style, control) for text, style, control in segments]
