"""Lines of spans, drawn line by line: only those that changed, without any layout.

So are title and key line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from app.text.glyphs import choose_glyphs
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, apart, muted, spread_lines, title
from app.tui.drawing.panels import word_mark

_STYLES = {
    SpanRole.PLAIN: "",
    SpanRole.STRONG: "bold",
    SpanRole.TITLE: "bold $primary",
    SpanRole.GOOD: "$success",
    SpanRole.CAUTION: "$warning",
    SpanRole.TROUBLE: "$error",
}
"""Those of the other roles are the colour of their name."""
_FAINT = frozenset((SpanRole.MUTED, SpanRole.FRAME, SpanRole.UNFILLED))
_DIM = frozenset((*_FAINT, *(role for role in SpanRole if role.value.startswith("area-"))))
"""Dim in a curve or a frame, where colours are few."""
_COLOURED = [role for role in SpanRole if role is not SpanRole.PLAIN]


def _style_of(role: SpanRole) -> str:
    return _STYLES.get(role, f"${role.value}")


def _rule(role: SpanRole) -> str:
    words = _style_of(role).split()
    colour = "".join(f"color: {word};" for word in words if word != "bold")
    if role in _DIM:
        weight = "text-style: $muted-style;"
    elif "bold" in words:
        weight = "text-style: bold;"
    else:
        weight = ""
    return f"FigureLines .figures--{role.value} {{ {colour} {weight} }}"


class FigureLines(Widget):
    """Shows lines of spans. A change of their number is the one thing that costs a layout."""

    DEFAULT_CSS = "\n".join(["FigureLines { height: 0; }", *map(_rule, _COLOURED)])
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"figures--{role.value}" for role in _COLOURED}

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = []
        self._draw: Callable[[int], Sequence[Line]] | None = None
        self._base = Style.null()

    def show(self, lines: Iterable[Line]) -> None:
        """Show these lines in the height there is; what stays the same is not drawn again."""
        before = self.lines
        self.lines = list(lines)
        if len(before) != len(self.lines):
            self.refresh()
        elif self.size.width and (
            rows := [y for y, line in enumerate(self.lines) if line != before[y]]
        ):
            self.refresh(*(Region(0, y, self.size.width, 1) for y in rows))

    def fill(self, lines: Sequence[Line]) -> None:
        """Show these lines, as high as they are."""
        # not measured by Textual, which may be before the width settles
        self.styles.height = len(lines)
        self.show(lines)

    def follow(self, draw: Callable[[int], Sequence[Line]]) -> None:
        """Show what is drawn in the width that there is, as high as it is, and again in any other
        width."""
        self._draw = draw
        self.fill(draw(self.size.width or self.app.size.width - 2))

    def on_resize(self) -> None:
        """Draw again."""
        if self._draw is not None:
            self.follow(self._draw)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw some of the lines."""
        # of all of them: it is put together again from every widget above this one
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        width = self.size.width
        base = self._base
        if y >= len(self.lines):
            return Strip.blank(width, base)
        style_of = self.get_component_rich_style
        segments = [
            Segment(text, base if role is SpanRole.PLAIN else style_of(f"figures--{role.value}"))
            for text, role in self.lines[y]
        ]
        return Strip(segments).adjust_cell_length(width, base)


def content_of(one: Line, is_ansi: bool = False) -> Content:
    """Return a line as a widget of Textual takes it, such as a list; where colours are few, what is
    faint is dim."""
    return Content.assemble(
        *(
            (span.text, "dim" if is_ansi and span.role in _FAINT else _style_of(span.role))
            for span in one
        )
    )


def welcome(text: str) -> Content:
    """Return a greeting as it is shown: the name drawn, below it the words, with the keys in their
    colour."""
    words = Content(text)
    for key in re.finditer(
        r"^  (\S+)(?=  )", text, re.MULTILINE
    ):  # a line that offers something to try
        words = words.stylize("bold $accent", *key.span(1))
    name = [content_of(one) for one in word_mark(choose_glyphs())]
    return Content("\n").join([*name, Content(""), words])


Key = tuple[str, str]
"""A key's name and what it does; without a name it is left out."""


class ScreenTitle(FigureLines):
    """Names the screen, says what it is about, and at the right how things are."""

    DEFAULT_CSS = "ScreenTitle { height: 1; padding: 0 1; }"

    def __init__(self, name: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = name

    def tell(self, context: str = "", state: Line = EMPTY) -> None:
        """Show the title with this context and state."""
        begin = (title(self._title), muted(f"   {context}" if context else ""))
        self.follow(lambda width: [apart(begin, state, width)])


class KeyLine(FigureLines):
    """Says what keys do now, in as many lines as that takes."""

    DEFAULT_CSS = "KeyLine { height: 1; padding: 0 1; }"

    def tell(self, keys: Iterable[Key]) -> None:
        """Show these keys."""
        parts = [(Span(key, SpanRole.ACCENT), muted(f" {words}")) for key, words in keys if key]
        self.follow(lambda width: spread_lines(parts, width, choose_glyphs().between) or [EMPTY])
