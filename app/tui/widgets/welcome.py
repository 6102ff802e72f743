"""The look of the greeting: the name drawn, below it the words, with the keys in their colour."""

from __future__ import annotations

import re

from textual.content import Content

from app.text.glyphs import choose_glyphs
from app.tui.drawing.word_mark import word_mark
from app.tui.widgets.figure_lines import content_of

_KEY = re.compile(r"^  (\S+)(?=  )", re.MULTILINE)
"""First word of a line that offers something to try."""


def welcome(text: str) -> Content:
    """Return a greeting as it is shown."""
    words = Content(text)
    for key in _KEY.finditer(text):
        words = words.stylize("bold $accent", *key.span(1))
    name = [content_of(one) for one in word_mark(choose_glyphs())]
    return Content("\n").join([*name, Content(""), words])
