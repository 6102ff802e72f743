"""Blocks of Markdown as lines, and lines as rows. ``BLOCKS`` maps types of blocks to functions."""

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

EMPTY = Content("")


@record
class Line:
    """Line of text before wrapping."""

    text: Content = EMPTY
    first: Content = EMPTY
    continuation: Content = EMPTY
    """Content before the first row, and before each further row."""
    mark: str = ""
    """Part of ``first`` that is copied with the text, such as a bullet."""
    fill: str = ""
    """Style class of the row up to the right edge; empty if there is none."""
    is_code: bool = False
    """Whether spaces are significant and the line may break anywhere."""

    @property
    def copied(self) -> str:
        """Text of the line as it is copied."""
        return " ".join((self.mark + self.text.plain).splitlines())


@record
class Row:
    """Row of the screen."""

    lead: Content
    text: Content
    line: int
    offset: int
    """Start of the row's text in the line as it is copied, in characters."""

    def is_same(self, other_row: Row) -> bool:
        """Whether two rows look the same."""
        return self.lead.is_same(other_row.lead) and self.text.is_same(other_row.text)


def indented(
    lines: Sequence[Line], first: Content, continuation: Content, mark: str = ""
) -> list[Line]:
    """Put ``first`` before the first row of all lines, and ``continuation`` before all others."""
    leads = [(first, mark), *[(continuation, "")] * (len(lines) - 1)]
    return [
        replace(
            line,
            first=lead + line.first,
            continuation=continuation + line.continuation,
            mark=line_mark + line.mark,
        )
        for line, (lead, line_mark) in zip(lines, leads, strict=False)
    ]


def plain_lines(text: str) -> list[Line]:
    """Return raw text as lines."""
    return [Line(Content(line)) for line in text.split("\n")]


def rows_of(line: Line, number: int, width: int) -> Iterator[Row]:
    """Wrap a line to rows of ``width`` cells."""
    width_left = max(2, width - line.continuation.cell_length)
    offset = 0
    for count, piece in enumerate(_pieces(line, width_left)):
        match = line.text.plain.find(piece.plain, offset)
        if match >= 0:
            offset = match
        padded = piece
        if line.fill:
            n_blanks = max(0, width_left - piece.cell_length)
            padded = piece.pad_right(n_blanks).stylize_before(line.fill)
        lead = line.continuation if count else line.first
        yield Row(lead, padded, number, len(line.mark) + offset)
        offset += len(piece)


def _pieces(line: Line, width: int) -> list[Content]:
    if not line.text:
        return [line.text]
    if line.is_code:
        return line.text.expand_tabs(4).fold(width)
    return line.text.wrap(width)


_CLASSES = {"em": ".em", "strong": ".strong", "s": ".gone"}
_BREAKS = {"softbreak": " ", "hardbreak": "\n"}
_SPACE = re.compile(r"\s+")


def inline_text(node: SyntaxTreeNode) -> Content:
    """Return the styled text of a node and its children, with hard line breaks only."""
    if node.type == "text":
        text = _SPACE.sub(" ", node.content)
        # Most text is plain ASCII, which is a hundred times faster to detect than to clean.
        if not (text.isascii() and text.isprintable()):
            text = screen_text(text)  # the parser has decoded entities to characters
        return Content(text)
    if node.type in _BREAKS:
        return Content(_BREAKS[node.type])
    if node.type == "code_inline":
        return Content(node.content).stylize(".code")
    if node.type == MATH:
        is_display = node.meta["is_display"]
        rows = _formula(node, is_display=is_display)
        if is_display:
            rows = ["", *rows, ""]
        return Content("\n".join(rows))
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
    """Return a formula as rows of text, or its source if the terminal cannot show it."""
    rows: Sequence[str] = ()
    if choose_glyphs() is not ASCII:
        rows = formula_rows(node.content, is_display=is_display)
    return rows or screen_text(node.markup).split("\n")


def _link(target: object) -> Style:
    """Return the style of a link; a click runs the widget's action ``link``."""
    return Style.from_meta({"@click": f"link({str(target)!r})"})


# The font of the Linux console has no other bullets.
BULLETS = "•-*"
_TASKS = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}
_TITLES = 3

Highlight = Callable[[str, str], Content]
"""Function that colours code, given the code and the name of its language."""


@record
class Page:
    """Context in which a block is laid out."""

    width: int
    """Width of a row in cells."""
    highlight: Highlight | None = None

    def narrowed(self, n_cells: int) -> Page:
        """Return a narrower page, for blocks with a margin at their left."""
        return Page(max(2, self.width - n_cells), self.highlight)


def markdown_lines(tree: SyntaxTreeNode, page: Page) -> list[Line]:
    """Return the lines of all blocks in a text or in another block."""
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
    # The label is not part of the text, so it is not copied with the code.
    label_edge = edge + Content(clean_line(language, 20)).stylize(".block").stylize(".edge")
    lines = []
    if language:
        lines.append(Line(EMPTY, label_edge, label_edge, fill=".block"))
    for line in text.split("\n", allow_blank=True):
        lines.append(Line(line, edge, edge, fill=".block", is_code=True))
    return lines


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
    previous_type = ""
    for node in item.children:
        # Lists are compact: a blank row comes only between blocks that would run together.
        if previous_type in ("fence", "table") or previous_type == node.type == "paragraph":
            lines.append(Line())
        lines += _lines(node, page.narrowed(len(mark)))
        previous_type = node.type
    if lines and (task := tasks.get(lines[0].text.plain[:4])):
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


LEAST_COLUMN_CELLS = 4
"""Minimum width of a column; a table with narrower columns is drawn as a list of its cells."""

Cells = list[Content]


def table_lines(table: SyntaxTreeNode, width: int) -> list[Line]:
    """Return the lines of a table, at most ``width`` cells wide."""
    rows = [row for section in table.children for row in section.children]
    cells = [[_cell(cell) for cell in row.children] for row in rows]
    cells[0] = [cell.stylize_before(".strong") for cell in cells[0]]
    aligns = [
        str(cell.attrs.get("style", "")).removeprefix("text-align:") for cell in rows[0].children
    ]
    widths = _fitted(
        [
            max(cell.cell_length for cell in column)
            for column in zip_longest(*cells, fillvalue=EMPTY)
        ],
        width,
    )
    if widths is None:
        return _as_list(cells)
    drawn = [_row(row, widths, aligns) for row in cells]
    edge = [Line(_edge(widths))]
    # Rows of a single line need no rules between them.
    is_open = all(len(lines) == 1 for lines in drawn[1:])
    lines = drawn[0] + edge
    for number, row in enumerate(drawn[1:]):
        if is_open or not number:
            lines += row
        else:
            lines += edge + row
    return lines


def _cell(cell: SyntaxTreeNode) -> Content:
    """Return the text of a cell, with formulas in the same line."""
    if cell.children:
        text = inline_text(cell.children[0])
    else:
        text = EMPTY
    if "\n" in text.plain:
        return Content(" ").join(text_line for text_line in text.split("\n") if text_line)
    return text


def _fitted(widths: list[int], width: int) -> list[int] | None:
    """Shrink the widest columns until all fit; None if that is impossible."""
    room = width - 3 * (len(widths) - 1) - 2
    if room < LEAST_COLUMN_CELLS * len(widths):
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
            + bar.join(_align(*cell) for cell in zip(cells, widths, aligns, strict=False))
        )
        for cells in list(zip_longest(*wrapped, fillvalue=EMPTY)) or [(EMPTY,) * len(widths)]
    ]


def _align(text: Content, width: int, align: str) -> Content:
    free = max(0, width - text.cell_length)
    if align == "right":
        n_left = free
    elif align == "center":
        n_left = free // 2
    else:
        n_left = 0
    return text.pad_left(n_left).pad_right(free - n_left)


def _edge(widths: list[int]) -> Content:
    return Content(f"─{'─┼─'.join('─' * n for n in widths)}─").stylize(".edge")


def _as_list(cells: Sequence[Cells]) -> list[Line]:
    """Return a line for each cell, after the name of its column."""
    names, *rows = cells
    lines: list[Line] = []
    for row in rows or [[EMPTY] * len(names)]:
        lines += [Line(name + Content(": ") + cell) for name, cell in zip(names, row, strict=False)]
        lines.append(Line())
    return lines[:-1]
