"""Numbers of three rows' height, drawn with half blocks; one row where the terminal has none."""

from __future__ import annotations

from app.text.glyphs import Glyphs

ROWS = 3
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
    signs = [_DOTS[sign] for sign in number if sign in _DOTS]
    dots = [" ".join(sign[row] for sign in signs) for row in range(5)]
    dots.append(" " * len(dots[0]))
    return [_row(dots[2 * row], dots[2 * row + 1], glyphs.halves) for row in range(ROWS)]


def _row(upper: str, lower: str, halves: str) -> str:
    both, top, bottom = tuple(halves)
    shapes = {("#", "#"): both, ("#", " "): top, (" ", "#"): bottom}
    return "".join(shapes.get(pair, " ") for pair in zip(upper, lower, strict=True))
