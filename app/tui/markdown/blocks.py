"""Blocks of Markdown as lines, and lines as rows: each kind of block is a function and an entry of
the registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType

from markdown_it.tree import SyntaxTreeNode
from textual.content import Content
from textual.style import Style

from app.text.clean_text import clean_line, screen_text
from app.text.glyphs import ASCII, choose_glyphs
from app.text.record import record
from app.tui.markdown.formulas import formula_rows
from app.tui.markdown.parser import MATH, MATH_BLOCK

NOTHING = Content("")


@record
class Line:
    """One line, not wrapped yet."""

    text: Content = NOTHING
    first: Content = NOTHING
    rest: Content = NOTHING
    """Come before its first row, and before the rows after that."""
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
    text: Content
    line: int
    offset: int
    """Where in that line, as it is copied, the text begins."""

    def is_same(self, other: Row) -> bool:
        """Whether it looks the same."""
        return self.lead.is_same(other.lead) and self.text.is_same(other.text)


def indented(lines: Sequence[Line], first: Content, rest: Content, mark: str = "") -> list[Line]:
    """Put something before lines: ``first`` before the first row of all, ``rest`` before the
    others."""
    before = [(first, mark), *[(rest, "")] * (len(lines) - 1)]
    return [
        replace(line, first=lead + line.first, rest=rest + line.rest, mark=own + line.mark)
        for line, (lead, own) in zip(lines, before, strict=False)
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
        if found >= 0:
            at = found
        if line.fill:
            shown = part.pad_right(max(0, room - part.cell_length)).stylize_before(line.fill)
        else:
            shown = part
        yield Row(line.rest if count else line.first, shown, number, len(line.mark) + at)
        at += len(part)


def _parts(line: Line, room: int) -> list[Content]:
    if not line.text:
        return [line.text]
    if line.is_code:
        return line.text.expand_tabs(4).fold(room)
    return line.text.wrap(room)


_CLASSES = {"em": ".em", "strong": ".strong", "s": ".gone"}
_BREAKS = {"softbreak": " ", "hardbreak": "\n"}
_SPACE = re.compile(r"\s+")


def inline_text(node: SyntaxTreeNode) -> Content:
    """Return the styled text of a node and all within it; line breaks are those the text insists
    on."""
    if node.type == "text":
        text = _SPACE.sub(" ", node.content)
        # what most text is, seen a hundred times faster
        is_plain = text.isascii() and text.isprintable()
        # again: entities are characters by now
        return Content(text if is_plain else screen_text(text))
    if node.type in _BREAKS:
        return Content(_BREAKS[node.type])
    if node.type == "code_inline":
        return Content(node.content).stylize(".code")
    if node.type == MATH:
        is_display = node.meta["is_display"]
        rows = _formula(node, is_display=is_display)
        return Content("\n".join(["", *rows, ""] if is_display else rows))
    inner = Content("").join(inline_text(child) for child in node.children)
    if node.type == "image":
        return Content(f"[image: {inner.plain or node.attrs.get('src', '')}]").stylize(
            _link(node.attrs.get("src", ""))
        )
    if node.type == "link":
        return inner.stylize_before(_link(node.attrs.get("href", "")))
    if node.type in _CLASSES:
        return inner.stylize_before(_CLASSES[node.type])
    if node.children:
        return inner
    return Content(node.content)


def _formula(node: SyntaxTreeNode, *, is_display: bool) -> Sequence[str]:
    """Return a formula as rows of text; as its source where it has no other look here, or the font
    lacks the signs."""
    shown = () if choose_glyphs() is ASCII else formula_rows(node.content, is_display=is_display)
    return shown or screen_text(node.markup).split("\n")


def _link(target: object) -> Style:
    """Style of a link; a click runs the widget's action that shows its target."""
    return Style.from_meta({"@click": f"link({str(target)!r})"})


# The Linux console's font has no other bullets.
BULLETS = "•-*"
_TASKS = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}
_TITLES = 3

Highlight = Callable[[str, str], Content]
"""Colours code: the code and the name of its language."""


@record
class Page:
    """Surroundings of a block."""

    width: int
    """Cells of a row."""
    highlight: Highlight | None = None

    def narrowed(self, n_cells: int) -> Page:
        """The same with something at its left."""
        return Page(max(2, self.width - n_cells), self.highlight)


def markdown_lines(tree: SyntaxTreeNode, page: Page) -> list[Line]:
    """Return the lines of all blocks of a text, or of another block."""
    lines: list[Line] = []
    for node in tree.children:
        if lines:
            lines.append(Line())
        lines += _lines(node, page)
    return lines


def _lines(node: SyntaxTreeNode, page: Page) -> list[Line]:
    make = BLOCKS.get(node.type)
    if make:
        return make(node, page)
    return plain_lines(node.content)


def _paragraph(node: SyntaxTreeNode, page: Page) -> list[Line]:
    lines = [
        Line(line)
        for child in node.children
        for line in inline_text(child).split("\n", allow_blank=True)
    ]
    return [line for line in lines if line.text.plain.strip()] or lines[:1]


def _math_block(node: SyntaxTreeNode, page: Page) -> list[Line]:
    rows = _formula(node, is_display=True)
    return [Line(Content("  " + row), is_code=len(rows) > 1) for row in rows]


def _heading(node: SyntaxTreeNode, page: Page) -> list[Line]:
    style = f".title-{min(int(node.tag[1:]), _TITLES)}"
    return [Line(line.text.stylize_before(style)) for line in _paragraph(node, page)]


def _rule(node: SyntaxTreeNode, page: Page) -> list[Line]:
    return [Line(Content("─" * page.width).stylize(".edge"))]


def _quote(node: SyntaxTreeNode, page: Page) -> list[Line]:
    bar = Content("▌ ").stylize(".mark")
    return indented(markdown_lines(node, page.narrowed(2)), bar, bar)


def _code(node: SyntaxTreeNode, page: Page) -> list[Line]:
    code = node.content.removesuffix("\n")
    language = node.info.partition(" ")[0]
    if page.highlight:
        text = page.highlight(code, language)
    else:
        text = Content(code)
    edge = Content(" ").stylize(".block")
    # Not in the text: it is not copied with the code.
    named = edge + Content(clean_line(language, 20)).stylize(".block").stylize(".edge")
    if language:
        label = [Line(NOTHING, named, named, fill=".block")]
    else:
        label = []
    return label + [
        Line(line, edge, edge, fill=".block", is_code=True)
        for line in text.split("\n", allow_blank=True)
    ]


def _bullets(node: SyntaxTreeNode, page: Page) -> list[Line]:
    if choose_glyphs() is ASCII:
        tasks = {}
    else:
        tasks = _TASKS
    bullet = BULLETS[node.level // 2 % len(BULLETS)]
    return [line for item in node.children for line in _item(item, f"{bullet} ", page, tasks)]


def _numbers(node: SyntaxTreeNode, page: Page) -> list[Line]:
    start = int(node.attrs.get("start", 1))
    n_cells = len(str(start + len(node.children) - 1)) + 1
    numbered = enumerate(node.children, start)
    return [
        line
        for number, item in numbered
        for line in _item(item, f" {number}.".rjust(n_cells + 1) + " ", page)
    ]


def _item(
    item: SyntaxTreeNode, mark: str, page: Page, tasks: Mapping[str, str] = MappingProxyType({})
) -> list[Line]:
    lines: list[Line] = []
    before = ""
    for node in item.children:
        # Lists are close: a blank row only between what would run together otherwise.
        if before in ("fence", "table") or before == node.type == "paragraph":
            lines.append(Line())
        lines += _lines(node, page.narrowed(len(mark)))
        before = node.type
    if lines:
        task = tasks.get(lines[0].text.plain[:4])
    else:
        task = None
    if task:
        lines[0] = replace(lines[0], text=Content(task) + lines[0].text[4:])
    return indented(
        lines or [Line()], Content(mark).stylize(".mark"), Content(" " * len(mark)), mark
    )


BLOCKS: dict[str, Callable[[SyntaxTreeNode, Page], list[Line]]] = {
    "paragraph": _paragraph,
    "heading": _heading,
    "hr": _rule,
    "blockquote": _quote,
    "fence": _code,
    "code_block": _code,
    MATH_BLOCK: _math_block,
    "bullet_list": _bullets,
    "ordered_list": _numbers,
    "table": lambda node, page: table_lines(node, page.width),
}


LEAST_COLUMN = 4
"""Least width of a column in cells; where one would be narrower, the table is drawn as a list of
its cells."""

Cells = list[Content]


def table_lines(table: SyntaxTreeNode, width: int) -> list[Line]:
    """Return the lines of a table, none wider than ``width`` cells."""
    rows = [row for part in table.children for row in part.children]
    cells = [[_cell(cell) for cell in row.children] for row in rows]
    cells[0] = [cell.stylize_before(".strong") for cell in cells[0]]
    aligns = [
        str(cell.attrs.get("style", "")).removeprefix("text-align:") for cell in rows[0].children
    ]
    widths = _fitted(
        [
            max(cell.cell_length for cell in column)
            for column in zip_longest(*cells, fillvalue=NOTHING)
        ],
        width,
    )
    if widths is None:
        return _as_list(cells)
    drawn = [_row(row, widths, aligns) for row in cells]
    edge = [Line(_edge(widths))]
    # Rows of one line each need no lines between them.
    is_open = all(len(lines) == 1 for lines in drawn[1:])
    lines = drawn[0] + edge
    for number, row in enumerate(drawn[1:]):
        if is_open or not number:
            lines += row
        else:
            lines += edge + row
    return lines


def _cell(cell: SyntaxTreeNode) -> Content:
    """The text of a cell, formulas in one line with it."""
    if cell.children:
        text = inline_text(cell.children[0])
    else:
        text = NOTHING
    if "\n" in text.plain:
        return Content(" ").join(part for part in text.split("\n") if part)
    return text


def _fitted(widths: list[int], width: int) -> list[int] | None:
    """Take cells from the widest columns until all fit; None where they cannot."""
    room = width - 3 * (len(widths) - 1) - 2
    if room < LEAST_COLUMN * len(widths):
        return None
    widths = [max(1, min(n, room)) for n in widths]
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    return widths


def _row(row: Cells, widths: list[int], aligns: list[str]) -> list[Line]:
    wrapped = [cell.wrap(n) if cell else [] for cell, n in zip(row, widths, strict=False)]
    bar = Content(" │ ").stylize(".edge")
    return [
        Line(
            Content(" ")
            + bar.join(_aligned(*cell) for cell in zip(parts, widths, aligns, strict=False))
        )
        for parts in list(zip_longest(*wrapped, fillvalue=NOTHING)) or [(NOTHING,) * len(widths)]
    ]


def _aligned(text: Content, width: int, align: str) -> Content:
    free = max(0, width - text.cell_length)
    if align == "right":
        left = free
    elif align == "center":
        left = free // 2
    else:
        left = 0
    return text.pad_left(left).pad_right(free - left)


def _edge(widths: list[int]) -> Content:
    return Content(f"─{'─┼─'.join('─' * n for n in widths)}─").stylize(".edge")


def _as_list(cells: Sequence[Cells]) -> list[Line]:
    """One line a cell, under the name of its column."""
    names, *rows = cells
    lines: list[Line] = []
    for row in rows or [[NOTHING] * len(names)]:
        lines += [Line(name + Content(": ") + cell) for name, cell in zip(names, row, strict=False)]
        lines.append(Line())
    return lines[:-1]
