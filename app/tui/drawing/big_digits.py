"""Numbers of three rows' height, drawn with half blocks; one row where the terminal has none."""

from __future__ import annotations

from collections.abc import Sequence

from app.text.glyphs import Glyphs

_DOTS = {
    "0": ("###", "# #", "# #", "# #", "###"),
    "1": (" # ", "## ", " # ", " # ", "###"),
    "2": ("###", "  #", "###", "#  ", "###"),
    "3": ("###", "  #", "###", "  #", "###"),
    "4": ("# #", "# #", "###", "  #", "  #"),
    "5": ("###", "#  ", "###", "  #", "###"),
    "6": ("###", "#  ", "###", "# #", "###"),
    "7": ("###", "  #", "  #", "  #", "  #"),
    "8": ("###", "# #", "###", "# #", "###"),
    "9": ("###", "# #", "###", "  #", "###"),
    "-": ("   ", "   ", "###", "   ", "   "),
    ".": (" ", " ", " ", " ", "#"),
    " ": ("   ", "   ", "   ", "   ", "   "),
}
"""Five rows of dots for each sign."""


def big_digits(number: str, glyphs: Glyphs) -> list[str]:
    """Draw a number in three rows of equal width; signs that it has no dots for are left out."""
    if not glyphs.halves:
        return ["", number, ""]
    return half_blocks([_DOTS[sign] for sign in number if sign in _DOTS], glyphs)


def half_blocks(signs: Sequence[Sequence[str]], glyphs: Glyphs) -> list[str]:
    """Draw signs of dots side by side, two rows of dots in one of text."""
    dots = [" ".join(rows) for rows in zip(*signs, strict=True)]
    dots += [" " * len(dots[0])] * (len(dots) % 2)
    return [_row(upper, lower, glyphs.halves) for upper, lower in zip(dots[::2], dots[1::2], strict=True)]


def _row(upper: str, lower: str, halves: str) -> str:
    both, top, bottom = tuple(halves)
    shapes = {("#", "#"): both, ("#", " "): top, (" ", "#"): bottom}
    return "".join(shapes.get(pair, " ") for pair in zip(upper, lower, strict=True))
