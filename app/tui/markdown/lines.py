"""Lines of styled text and the rows they are wrapped to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content

from app.text.record import record

NOTHING = Content("")


@record
class Line:
    """One line, not wrapped yet."""

    text: Content = NOTHING
    first: Content = NOTHING
    """Stands before its first row."""
    rest: Content = NOTHING
    """Stands before the rows after that."""
    mark: str = ""
    """The part of ``first`` that belongs to the text when it is copied, such as a bullet."""
    fill: str = ""
    """Style class of the text out to the right edge; "" for none."""
    is_code: bool = False
    """Its spaces count; it is broken anywhere."""

    @property
    def copied(self) -> str:
        """The line as it is copied."""
        return " ".join((self.mark + self.text.plain).splitlines())


@record
class Row:
    """One row of the screen, no wider than that."""

    lead: Content
    """Stands before the text."""
    text: Content
    line: int
    """The number of its line."""
    offset: int
    """Where in that line, as it is copied, the text begins."""

    def is_same(self, other: Row) -> bool:
        """Whether it looks the same."""
        return self.lead.is_same(other.lead) and self.text.is_same(other.text)


def indented(lines: Sequence[Line], first: Content, rest: Content, mark: str = "") -> list[Line]:
    """Put something before lines: ``first`` before the first row of all, ``rest`` before the others."""
    return [
        Line(
            line.text,
            (rest if number else first) + line.first,
            rest + line.rest,
            line.mark if number else mark + line.mark,
            line.fill,
            line.is_code,
        )
        for number, line in enumerate(lines)
    ]


def plain_lines(text: str) -> list[Line]:
    """Return text as it came."""
    return [Line(Content(line)) for line in text.split("\n")]


def rows_of(line: Line, number: int, width: int) -> Iterator[Row]:
    """Wrap a line to rows of ``width`` cells."""
    room = max(2, width - line.rest.cell_length)
    at = 0
    for count, part in enumerate(_parts(line, room)):
        found = line.text.plain.find(part.plain, at)
        at = found if found >= 0 else at
        shown = part.pad_right(max(0, room - part.cell_length)).stylize_before(line.fill) if line.fill else part
        yield Row(line.rest if count else line.first, shown, number, len(line.mark) + at)
        at += len(part)


def _parts(line: Line, room: int) -> list[Content]:
    if not line.text:
        return [line.text]
    if line.is_code:
        return line.text.expand_tabs(4).fold(room)
    return line.text.wrap(room)
