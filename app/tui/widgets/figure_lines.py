"""Widgets for lines of spans, which redraw only changed lines and need no layout."""

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
    SpanRole.TITLE: "bold $title",
    SpanRole.GOOD: "$success",
    SpanRole.CAUTION: "$warning",
    SpanRole.TROUBLE: "$error",
}
"""Styles of roles; the style of any other role is the colour with its name."""
_FAINT = frozenset((SpanRole.MUTED, SpanRole.FRAME, SpanRole.UNFILLED))
_DIM = frozenset((*_FAINT, *(role for role in SpanRole if role.value.startswith("area-"))))
"""Roles that are dim where colours are few."""
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
    """Widget for lines of spans. Only a change of their number needs a layout."""

    DEFAULT_CSS = "\n".join(["FigureLines { height: 0; }", *map(_rule, _COLOURED)])
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"figures--{role.value}" for role in _COLOURED}

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = []
        self._draw: Callable[[int], Sequence[Line]] | None = None
        self._styles: dict[SpanRole, Style] = {}
        """Style of each role. Textual would compute them again for each drawing."""
        self._columns = 0

    def show(self, lines: Iterable[Line]) -> None:
        """Show lines in the present height, redrawing only those that changed."""
        previous_lines = self.lines
        self.lines = list(lines)
        if len(previous_lines) != len(self.lines):
            self.refresh()
        elif self.size.width and (
            rows := [y for y, line in enumerate(self.lines) if line != previous_lines[y]]
        ):
            self.refresh(*(Region(0, y, self.size.width, 1) for y in rows))

    def fill(self, lines: Sequence[Line]) -> None:
        """Show lines and make the widget as high as they are."""
        # Textual would measure the height, maybe before the width is final.
        self.styles.height = len(lines)
        self.show(lines)

    def follow(self, draw: Callable[[int], Sequence[Line]]) -> None:
        """Show the lines that ``draw`` returns for the width, now and whenever the width
        changes."""
        self._draw = draw
        self.fill(draw(self.size.width or self.app.size.width - 2))

    def on_resize(self) -> None:
        """Draw the lines in the new width."""
        if self._draw is not None:
            self.follow(self._draw)

    def notify_style_update(self) -> None:
        """Look up the styles of the roles again."""
        super().notify_style_update()
        self._styles = {}

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the lines in a region."""
        # Computed once for all lines, because they depend on every widget above this one.
        base = self.rich_style
        if base != self._styles.get(SpanRole.PLAIN):
            self._styles = {SpanRole.PLAIN: base}
        self._columns = self.size.width
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        base = self._styles[SpanRole.PLAIN]
        if y >= len(self.lines):
            return Strip.blank(self._columns, base)
        segments = [Segment(text, self._style_of(role)) for text, role in self.lines[y]]
        return Strip(segments).adjust_cell_length(self._columns, base)

    def _style_of(self, role: SpanRole) -> Style:
        style = self._styles.get(role)
        if style is None:
            style = self.get_component_rich_style(f"figures--{role.value}")
            self._styles[role] = style
        return style


def content_of(text_line: Line, is_ansi: bool = False) -> Content:
    """Return a line as Textual's content; faint roles are dim if ``is_ansi``."""
    texts = []
    for text, role in text_line:
        style = _style_of(role)
        if is_ansi and role in _FAINT:
            style = "dim"
        texts.append((text, style))
    return Content.assemble(*texts)


def welcome(text: str) -> Content:
    """Return the greeting below the drawn name, with keys in the colour of keys."""
    words = Content(text)
    for match in re.finditer(r"^  (\S+)(?=  )", text, re.MULTILINE):
        words = words.stylize("bold $accent", *match.span(1))
    name = [content_of(row) for row in word_mark(choose_glyphs())]
    return Content("\n").join([*name, Content(""), words])


Key = tuple[str, str]
"""Name of a key and its effect; a key without a name is not shown."""


class ScreenTitle(FigureLines):
    """Title line: name of the screen, its subject, and its state at the right."""

    DEFAULT_CSS = "ScreenTitle { height: 1; padding: 0 1; }"

    def __init__(self, name: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = name

    def set_content(self, context: str = "", state: Line = EMPTY) -> None:
        """Show the title with a subject and a state."""
        left: Line = (title(self._title),)
        if context:
            left = (*left, muted(f"   {context}"))
        self.follow(lambda width: [apart(left, state, width)])


class KeyLine(FigureLines):
    """Present effects of keys, in as many lines as necessary."""

    DEFAULT_CSS = "KeyLine { height: 1; padding: 0 1; }"

    def set_content(self, keys: Iterable[Key]) -> None:
        """Show these keys."""
        cells = [(Span(key, SpanRole.ACCENT), muted(f" {words}")) for key, words in keys if key]
        self.follow(lambda width: spread_lines(cells, width, choose_glyphs().between) or [EMPTY])
