"""Markdown that grows at its end, as rows: only the open block is parsed again."""

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
    """Return the end of the last complete block in characters; 0 if none is complete.

    This is a guess by lines. Complete blocks are not parsed again until the reply ends, so a wrong
    guess looks wrong for a while but loses no text.
    """
    complete = end = 0
    fence = ""
    is_list = is_after_blank = False
    for line in text.splitlines(keepends=True):
        start = end
        end = end + len(line)
        is_line_complete = line.endswith("\n")  # the last line may grow
        fence_match = _FENCE.match(line)
        if fence:
            if (
                is_line_complete
                and fence_match
                and fence_match["fence"].startswith(fence)
                and not fence_match["rest"].strip()
            ):
                fence = ""
                if not is_list:
                    complete = end
        elif not line.strip():
            if is_line_complete and not is_list:
                complete = end
            is_after_blank = True
        else:
            is_item = _LIST_ITEM.match(line) is not None
            if is_list and is_after_blank and not is_item and not line[0].isspace():
                is_list = False
                complete = start
            if fence_match:
                fence = fence_match["fence"]
            elif is_item:
                is_list = True
            elif is_line_complete and not is_list and _HEADING.match(line):
                complete = end
            is_after_blank = False
    return complete


def last_item_start(text: str) -> int:
    """Return the start of the last item of a list at the end of a text; 0 without a second
    item."""
    indents = [(match.start(), len(match[1].expandtabs())) for match in _ITEM_START.finditer(text)]
    outermost = min((indent for _, indent in indents), default=0)
    starts = [start for start, indent in indents if indent == outermost]
    if len(starts) > 1:
        return starts[-1]
    return 0


SMALL_CHARS = 1000
"""Length of an open block up to which it is parsed whenever it grows.

A longer one is parsed when it has grown by a quarter.
"""
SMALL_LINE_CHARS = 8000
"""The same limit for an open block of a single line."""
SMALL_ITEM_CHARS = 4000
"""The same limit for the last item of a long list; a longer item is shown as raw text."""

TABLE_CHARS = 8000
"""Length of an open table up to which it is parsed after each complete cell."""

TextPosition = tuple[int, int, int]
"""Position in a text: characters, rows and lines before it."""
_START: TextPosition = (0, 0, 0)


class GrowingMarkdown:
    """Rows of a growing Markdown text.

    Attributes:
        source: the text.
        rows: rows of the text; empty until ``lay_out`` sets the width.
    """

    def __init__(self) -> None:
        self.source = ""
        self.width = 0
        self.rows: list[Row] = []
        self._copied: list[str] = []
        self._highlight: Highlight | None = None
        self._tree: SyntaxTreeNode | None = None
        """Tree of the entire text; None unless it has been parsed in one piece."""
        self._is_plain = False
        self._complete: TextPosition = _START
        self._parsed_end: TextPosition = _START
        """End of the part of the open block that was parsed from its start."""
        self._n_parsed = 0
        """Length of the open block in characters when it was last parsed from its start."""
        self._is_at_item = False
        """Whether a list item starts at the end of the parsed text."""
        self._is_in_row = False
        """Whether the text ends within a row of a table."""

    @property
    def copied(self) -> str:
        """Text of all lines as it is copied."""
        return "\n".join(self._copied)

    def grow(self, text: str) -> int:
        """Append text; return the index of the first row that changed."""
        self.source += text
        self._tree = None
        if not self.width:
            return 0
        if self._is_plain:
            self.show_plain()
            return 0
        previous_rows = self.rows[self._complete[1] :]
        first_row = self._complete[1]
        self._show_complete()
        self._show_open()
        unchanged_rows = takewhile(
            lambda rows: rows[0].is_same(rows[1]),
            zip(previous_rows, self.rows[first_row:], strict=False),
        )
        return first_row + len(list(unchanged_rows))

    def lay_out(
        self, width: int, highlight: Highlight | None = None, *, is_whole: bool = False
    ) -> None:
        """Lay out all rows again, ``width`` cells wide.

        Args:
            highlight: function that colours code; in a growing text, only code of complete blocks.
            is_whole: whether the text is finished, so that it is parsed in one piece.
        """
        self.width = width
        self._highlight = highlight
        self._is_plain = False
        self._complete = self._parsed_end = _START
        self._n_parsed = 0
        self._is_at_item = False
        if is_whole:
            self._tree = self._tree or tree_of(self.source)
            self._show_from(_START, self._lines(self._tree, highlight))
        else:
            self._show_complete()
            self._show_open()

    def show_plain(self) -> None:
        """Show the raw text until the next ``lay_out``, because the parser has failed on it."""
        self._is_plain = True
        self._show_from(_START, plain_lines(self.source))

    def _show_complete(self) -> None:
        start = self._complete[0]
        n_complete = complete_chars(self.source[start:])
        if n_complete:
            end = start + n_complete
            lines = self._lines(tree_of(self.source[start:end]), self._highlight)
            if lines:
                lines.append(Line())
            self._show_from(self._complete, lines)
            self._complete = self._parsed_end = (end, len(self.rows), len(self._copied))
            self._n_parsed = 0
            self._is_at_item = False

    def _show_open(self) -> None:
        text = self.source[self._complete[0] :]
        limit = SMALL_CHARS if "\n" in text else SMALL_LINE_CHARS
        is_small = len(text) <= limit
        is_table = len(text) <= TABLE_CHARS and bool(_TABLE_RULE.search(text))
        last_line = text[text.rfind("\n") + 1 :]
        self._is_in_row = is_table and last_line.lstrip().startswith("|")
        cells_end = text.rfind("|" if self._is_in_row else "\n") + 1
        has_cell = is_table and cells_end > self._n_parsed
        if is_small or has_cell or len(text) >= self._n_parsed * 5 // 4:
            item_start = 0
            if not is_small and not has_cell:
                item_start = last_item_start(text)
            self._is_at_item = item_start > 0
            if is_small:
                self._n_parsed = len(text)
            else:
                self._n_parsed = item_start or cells_end or len(text)
            self._parsed_end = self._complete
            self._parse_further(self._n_parsed)
        self._show_rest()

    def _show_rest(self) -> None:
        """Show the unparsed end of the open block: list items by themselves, else raw text.

        The unfinished cell of a table is not shown.
        """
        text = self.source[self._parsed_end[0] :]
        if self._is_at_item and len(text) > SMALL_CHARS and (n_items := last_item_start(text)):
            self._parse_further(n_items)
            text = text[n_items:]
        lines: list[Line] = []
        if self._is_at_item and len(text) <= SMALL_ITEM_CHARS:
            lines = self._lines(tree_of(text))
        elif text and not (self._is_in_row and "\n" not in text):
            lines = plain_lines(text)
        self._show_from(self._parsed_end, lines)

    def _parse_further(self, n_chars: int) -> None:
        start = self._parsed_end[0]
        self._show_from(
            self._parsed_end, self._lines(tree_of(self.source[start : start + n_chars]))
        )
        self._parsed_end = (start + n_chars, len(self.rows), len(self._copied))

    def _lines(self, tree: SyntaxTreeNode, highlight: Highlight | None = None) -> list[Line]:
        return markdown_lines(tree, Page(self.width, highlight))

    def _show_from(self, position: TextPosition, lines: Sequence[Line]) -> None:
        _, n_rows, n_lines = position
        del self.rows[n_rows:], self._copied[n_lines:]
        for number, line in enumerate(lines, n_lines):
            self._copied.append(line.copied)
            self.rows += rows_of(line, number, self.width)
