"""The program's name, drawn: what a first start begins with."""

from __future__ import annotations

from app.text.glyphs import Glyphs
from app.tui.drawing.big_digits import half_blocks
from app.tui.drawing.lines import Line, Role, Span, line, title

NAME = "jalopy"
_LETTERS = {
    "j": ("  #", "   ", "  #", "  #", "  #", "  #", "# #", "###"),
    "a": ("    ", "    ", "####", "  ##", "#  #", "####", "    ", "    "),
    "l": ("# ", "# ", "# ", "# ", "# ", "##", "  ", "  "),
    "o": ("    ", "    ", "####", "#  #", "#  #", "####", "    ", "    "),
    "p": ("    ", "    ", "####", "#  #", "#  #", "####", "#   ", "#   "),
    "y": ("    ", "    ", "#  #", "#  #", "#  #", "####", "   #", "####"),
}
"""Eight rows of dots for each letter."""


def word_mark(glyphs: Glyphs) -> list[Line]:
    """Draw the name in four rows; in one where the terminal has no half blocks."""
    if not glyphs.halves:
        return [line(title(NAME))]
    return [line(Span(row, Role.WRITING)) for row in half_blocks([_LETTERS[letter] for letter in NAME], glyphs)]
