"""The look of the greeting: the name drawn, below it the words, with the keys in their colour."""

from __future__ import annotations

import re

from textual.content import Content

from app.text.glyphs import Glyphs, choose_glyphs
from app.tui.drawing.lines import Line, Role, Span, line, title
from app.tui.drawing.panels import half_blocks
from app.tui.widgets.figure_lines import content_of

_KEY = re.compile(r"^  (\S+)(?=  )", re.MULTILINE)
"""First word of a line that offers something to try."""
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


def welcome(text: str) -> Content:
    """Return a greeting as it is shown."""
    words = Content(text)
    for key in _KEY.finditer(text):
        words = words.stylize("bold $accent", *key.span(1))
    name = [content_of(one) for one in word_mark(choose_glyphs())]
    return Content("\n").join([*name, Content(""), words])
