"""A text that grows at its end, as rows for a screen: what is complete stays, only what is open is
parsed again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from markdown_it.tree import SyntaxTreeNode

from app.tui.markdown.blocks import Highlight, Line, Page, Row, markdown_lines, plain_lines, rows_of
from app.tui.markdown.parser import tree_of

_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})(?P<rest>.*)")
_LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_ITEM_START = re.compile(r"^([ \t]*)(?:[-*+]|\d{1,9}[.)])[ \t]", re.MULTILINE)
_TABLE_RULE = re.compile(r"^ {0,3}\|?[ \t]*:?-+:?[ \t]*\|[-:| \t]*$", re.MULTILINE)
_HEADING = re.compile(r" {0,3}#{1,6}\s")


def complete_chars(text: str) -> int:
    """Return where the last complete block ends; 0 if none is complete.

    A guess by lines, for what is shown while a reply streams: what is complete is not parsed again
    until the reply ends, so a wrong guess is a wrong look for a while, not a wrong text.
    """
    complete = end = 0
    fence = ""
    is_list = is_after_blank = False
    for line in text.splitlines(keepends=True):
        start = end
        end = end + len(line)
        is_whole = line.endswith("\n")  # the last line may go on
        found = _FENCE.match(line)
        if fence:
            if (
                is_whole
                and found
                and found["fence"].startswith(fence)
                and not found["rest"].strip()
            ):
                fence = ""
                if not is_list:
                    complete = end
        elif not line.strip():
            if is_whole and not is_list:
                complete = end
            is_after_blank = True
        else:
            is_item = _LIST_ITEM.match(line) is not None
            if is_list and is_after_blank and not is_item and not line[0].isspace():
                is_list = False
                complete = start
            if found:
                fence = found["fence"]
            elif is_item:
                is_list = True
            elif is_whole and not is_list and _HEADING.match(line):
                complete = end
            is_after_blank = False
    return complete


def last_item_start(text: str) -> int:
    """Return where the last item of the list begins that an open block ends with; 0 without a
    second item."""
    indents = [(found.start(), len(found[1].expandtabs())) for found in _ITEM_START.finditer(text)]
    outermost = min((indent for _, indent in indents), default=0)
    starts = [start for start, indent in indents if indent == outermost]
    if len(starts) > 1:
        return starts[-1]
    return 0


SMALL_CHARS = 1000
"""An open block of at most this length is parsed whenever it grows; a longer one when it has grown
by a quarter."""
SMALL_LINE_CHARS = 8000
"""The same limit for an open block that is a single line: it is parsed whenever it grows up to this
length."""
SMALL_ITEM_CHARS = 4000
"""The same limit for the last item of a long list; a longer one is shown as it came."""

TABLE_CHARS = 8000
"""The same limit for an open table, which is parsed with each row that is complete."""

Place = tuple[int, int, int]
"""Characters, rows and lines before it."""
_START: Place = (0, 0, 0)


class GrowingMarkdown:
    """Rows of a Markdown text, which is ``source``; none before the width is known."""

    def __init__(self) -> None:
        self.source = ""
        self.width = 0
        self.rows: list[Row] = []
        self._copied: list[str] = []
        self._highlight: Highlight | None = None
        self._tree: SyntaxTreeNode | None = None
        """Of the whole text, once it was parsed as one: another width needs no parsing."""
        self._is_plain = False
        self._settled: Place = _START
        self._parsed: Place = _START
        """End of the text parsed with its block, or of the last but one item of a long list."""
        self._n_parsed = 0
        """Characters of the open block when it was last parsed from its beginning."""
        self._is_at_item = False
        """Whether an item of a list begins at the end of what is parsed."""

    @property
    def copied(self) -> str:
        """All lines as they are copied; rows tell where they lie in it."""
        return "\n".join(self._copied)

    def grow(self, text: str) -> int:
        """Add text at the end; return the first row that changed."""
        self.source += text
        self._tree = None
        if not self.width:
            return 0
        if self._is_plain:
            self.show_plain()
            return 0
        before = self.rows[self._settled[1] :]
        first = self._settled[1]
        self._settle()
        self._show_open()
        same = takewhile(
            lambda rows: rows[0].is_same(rows[1]), zip(before, self.rows[first:], strict=False)
        )
        return first + len(list(same))

    def lay_out(
        self, width: int, highlight: Highlight | None = None, *, is_whole: bool = False
    ) -> None:
        """Make all rows again, ``width`` cells wide.

        Args:
            highlight: colours code, of a growing text that of blocks that are complete.
            is_whole: nothing will follow, so the text is parsed as one.
        """
        self.width = width
        self._highlight = highlight
        self._is_plain = False
        self._settled = self._parsed = _START
        self._n_parsed = 0
        self._is_at_item = False
        if is_whole:
            self._tree = self._tree or tree_of(self.source)
            self._show_from(_START, self._lines(self._tree, highlight))
        else:
            self._settle()
            self._show_open()

    def show_plain(self) -> None:
        """Show the text as it came, until the next ``lay_out``: it is one that the parser cannot
        take."""
        self._is_plain = True
        self._show_from(_START, plain_lines(self.source))

    def _settle(self) -> None:
        start = self._settled[0]
        n_complete = complete_chars(self.source[start:])
        if n_complete:
            end = start + n_complete
            lines = self._lines(tree_of(self.source[start:end]), self._highlight)
            self._show_from(self._settled, [*lines, Line()] if lines else [])
            self._settled = self._parsed = (end, len(self.rows), len(self._copied))
            self._n_parsed = 0
            self._is_at_item = False

    def _show_open(self) -> None:
        text = self.source[self._settled[0] :]
        is_small = len(text) <= (SMALL_CHARS if "\n" in text else SMALL_LINE_CHARS)
        has_row = (
            text.rfind("\n") >= self._n_parsed
            and len(text) <= TABLE_CHARS
            and bool(_TABLE_RULE.search(text))
        )
        if is_small or has_row or len(text) >= self._n_parsed * 5 // 4:
            if is_small or has_row:
                item = 0
            else:
                item = last_item_start(text)
            self._is_at_item = item > 0
            if is_small:
                self._n_parsed = len(text)
            else:
                self._n_parsed = item or text.rfind("\n") + 1 or len(text)
            self._parsed = self._settled
            self._parse_further(self._n_parsed)
        self._show_rest()

    def _show_rest(self) -> None:
        """Show what of the open block is not parsed with it: items of a list by themselves, else as
        it came."""
        rest = self.source[self._parsed[0] :]
        if self._is_at_item and len(rest) > SMALL_CHARS and (n_items := last_item_start(rest)):
            self._parse_further(n_items)
            rest = rest[n_items:]
        is_item = self._is_at_item and len(rest) <= SMALL_ITEM_CHARS
        self._show_from(
            self._parsed,
            self._lines(tree_of(rest)) if is_item else plain_lines(rest) if rest else [],
        )

    def _parse_further(self, n_chars: int) -> None:
        start = self._parsed[0]
        self._show_from(self._parsed, self._lines(tree_of(self.source[start : start + n_chars])))
        self._parsed = (start + n_chars, len(self.rows), len(self._copied))

    def _lines(self, tree: SyntaxTreeNode, highlight: Highlight | None = None) -> list[Line]:
        return markdown_lines(tree, Page(self.width, highlight))

    def _show_from(self, place: Place, lines: Sequence[Line]) -> None:
        _, n_rows, n_lines = place
        del self.rows[n_rows:], self._copied[n_lines:]
        for number, line in enumerate(lines, n_lines):
            self._copied.append(line.copied)
            self.rows += rows_of(line, number, self.width)
