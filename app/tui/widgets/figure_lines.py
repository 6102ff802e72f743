"""Lines of spans, drawn line by line: only the part that changed, without any layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from app.tui.drawing.lines import Line, Role, width_of


class FigureLines(Widget):
    """Shows lines of spans. A change of their number is the one thing that costs a layout."""

    DEFAULT_CSS = """
    FigureLines { height: auto; }
    FigureLines .figures--muted { color: $muted; text-style: $muted-style; }
    FigureLines .figures--strong { text-style: bold; }
    FigureLines .figures--title { color: $primary; text-style: bold; }
    FigureLines .figures--frame { color: $frame; text-style: $muted-style; }
    FigureLines .figures--unfilled { color: $unfilled; text-style: $muted-style; }
    FigureLines .figures--accent { color: $accent; }
    FigureLines .figures--good { color: $success; }
    FigureLines .figures--caution { color: $warning; }
    FigureLines .figures--trouble { color: $error; }
    FigureLines .figures--reading { color: $reading; }
    FigureLines .figures--writing { color: $writing; }
    FigureLines .figures--level-0 { color: $level-0; }
    FigureLines .figures--level-1 { color: $level-1; }
    FigureLines .figures--level-2 { color: $level-2; }
    FigureLines .figures--level-3 { color: $level-3; }
    FigureLines .figures--level-4 { color: $level-4; }
    FigureLines .figures--area-0 { color: $area-0; text-style: $muted-style; }
    FigureLines .figures--area-1 { color: $area-1; text-style: $muted-style; }
    FigureLines .figures--area-2 { color: $area-2; text-style: $muted-style; }
    FigureLines .figures--area-3 { color: $area-3; text-style: $muted-style; }
    FigureLines .figures--area-4 { color: $area-4; text-style: $muted-style; }
    FigureLines .figures--area-plain { color: $area-plain; text-style: $muted-style; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"figures--{role.value}" for role in Role if role is not Role.PLAIN}

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = []
        """As they stand."""
        self._base = Style.null()

    def show(self, lines: Iterable[Line]) -> None:
        """Show these lines; what stays the same is not drawn again."""
        before, self.lines = self.lines, list(lines)
        if len(before) != len(self.lines):
            self.refresh(layout=self.styles.height is not None and self.styles.height.is_auto)
            return
        width = self.size.width
        for y, (old, new) in enumerate(zip(before, self.lines, strict=True)):
            if old != new and width:
                begin, end = _changed(old, new)
                self.refresh(Region(begin, y, min(end, width) - begin, 1) if begin < width else Region(0, y, width, 1))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As high as there are lines."""
        return len(self.lines)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw some of the lines."""
        self._base = self.rich_style  # of all of them: it is put together anew from every widget above this one
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        width, base = self.size.width, self._base
        if y >= len(self.lines):
            return Strip.blank(width, base)
        segments = [
            Segment(
                span.text,
                base if span.role is Role.PLAIN else self.get_component_rich_style(f"figures--{span.role.value}"),
            )
            for span in self.lines[y]
        ]
        return Strip(segments).adjust_cell_length(width, base)


def _changed(old: Line, new: Line) -> tuple[int, int]:
    """Return the columns between which two lines differ."""
    n_same = 0
    while n_same < min(len(old), len(new)) and old[n_same] == new[n_same]:
        n_same += 1
    longest = max(width_of(old), width_of(new))
    if width_of(old) != width_of(new):
        return width_of(new[:n_same]), longest
    n_after = 0
    while n_after < min(len(old), len(new)) - n_same and old[-1 - n_after] == new[-1 - n_after]:
        n_after += 1
    return width_of(new[:n_same]), longest - width_of(new[len(new) - n_after :])


_VARIABLES = {
    Role.MUTED: "$muted",
    Role.FRAME: "$frame",
    Role.UNFILLED: "$unfilled",
    Role.TITLE: "bold $primary",
    Role.STRONG: "bold",
    Role.ACCENT: "$accent",
    Role.GOOD: "$success",
    Role.CAUTION: "$warning",
    Role.TROUBLE: "$error",
    Role.READING: "$reading",
    Role.WRITING: "$writing",
}
_FAINT = frozenset((Role.MUTED, Role.FRAME, Role.UNFILLED))


def content_of(one: Line, is_ansi: bool = False) -> Content:
    """Return a line as a widget of Textual takes it, such as a list; where colours are few, what is faint is dim."""
    parts = []
    for span in one:
        style = _VARIABLES.get(span.role, f"${span.role.value}" if span.role is not Role.PLAIN else "")
        parts.append((span.text, "dim" if is_ansi and span.role in _FAINT else style))
    return Content.assemble(*parts)
