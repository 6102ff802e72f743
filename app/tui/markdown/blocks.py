"""Blocks of Markdown as lines: each kind is one function here and one entry of the registry below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from markdown_it.tree import SyntaxTreeNode
from textual.content import Content

from app.text.clean_text import clean_line
from app.text.glyphs import ASCII, choose_glyphs
from app.text.record import record
from app.tui.markdown.inline import inline_text
from app.tui.markdown.lines import NOTHING, Line, indented, plain_lines
from app.tui.markdown.tables import table_lines

# The Linux console's font has no other bullets.
BULLETS = "•-*"
_TASKS = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}
"""Boxes of tasks by how they are written."""
_TITLES = 3
"""Headings below this level look alike."""

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
    return make(node, page) if make else plain_lines(node.content)


def _paragraph(node: SyntaxTreeNode, page: Page) -> list[Line]:
    return [Line(line) for child in node.children for line in inline_text(child).split("\n", allow_blank=True)]


def _heading(node: SyntaxTreeNode, page: Page) -> list[Line]:
    style = f".title-{min(int(node.tag[1:]), _TITLES)}"
    return [Line(line.text.stylize_before(style)) for line in _paragraph(node, page)]


def _rule(node: SyntaxTreeNode, page: Page) -> list[Line]:
    return [Line(Content("─" * page.width).stylize(".edge"))]


def _quote(node: SyntaxTreeNode, page: Page) -> list[Line]:
    bar = Content("▌ ").stylize(".mark")
    return indented(markdown_lines(node, page.narrowed(2)), bar, bar)


def _code(node: SyntaxTreeNode, page: Page) -> list[Line]:
    code, language = node.content.removesuffix("\n"), node.info.partition(" ")[0]
    text = page.highlight(code, language) if page.highlight else Content(code)
    edge = Content(" ").stylize(".block")
    # Not in the text: it is not copied with the code.
    named = edge + Content(clean_line(language, 20)).stylize(".block").stylize(".edge")
    label = [Line(NOTHING, named, named, fill=".block")] if language else []
    return label + [Line(line, edge, edge, fill=".block", is_code=True) for line in text.split("\n", allow_blank=True)]


def _bullets(node: SyntaxTreeNode, page: Page) -> list[Line]:
    tasks = {} if choose_glyphs() is ASCII else _TASKS
    bullet = BULLETS[node.level // 2 % len(BULLETS)]
    return [line for item in node.children for line in _item(item, f"{bullet} ", page, tasks)]


def _numbers(node: SyntaxTreeNode, page: Page) -> list[Line]:
    start = int(node.attrs.get("start", 1))
    n_cells = len(str(start + len(node.children) - 1)) + 1
    numbered = enumerate(node.children, start)
    return [line for number, item in numbered for line in _item(item, f" {number}.".rjust(n_cells + 1) + " ", page)]


def _item(item: SyntaxTreeNode, mark: str, page: Page, tasks: Mapping[str, str] = MappingProxyType({})) -> list[Line]:
    lines: list[Line] = []
    before = ""
    for node in item.children:
        # Lists stand close: a blank row only between what would run together otherwise.
        if before in ("fence", "table") or before == node.type == "paragraph":
            lines.append(Line())
        lines += _lines(node, page.narrowed(len(mark)))
        before = node.type
    task = tasks.get(lines[0].text.plain[:4]) if lines else None
    if task:
        lines[0] = replace(lines[0], text=Content(task) + lines[0].text[4:])
    return indented(lines or [Line()], Content(mark).stylize(".mark"), Content(" " * len(mark)), mark)


BLOCKS: dict[str, Callable[[SyntaxTreeNode, Page], list[Line]]] = {
    "paragraph": _paragraph,
    "heading": _heading,
    "hr": _rule,
    "blockquote": _quote,
    "fence": _code,
    "code_block": _code,
    "bullet_list": _bullets,
    "ordered_list": _numbers,
    "table": lambda node, page: table_lines(node, page.width),
}
