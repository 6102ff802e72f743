"""Text of a reply: rows of Markdown that grow while it streams.

Code gets its colours when its block ends.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from textual.content import Content
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual
from textual.widget import Widget

from app.program.refusals import log_without_text
from app.text.clean_text import ScreenCleaner
from app.tui.chat.messages import LinkChosen
from app.tui.chat.text_search import spans_in
from app.tui.markdown.blocks import Row
from app.tui.markdown.growing import GrowingMarkdown
from app.tui.widgets.found_text import FOUND, FOUND_NOW, marked

if TYPE_CHECKING:
    from textual.highlight import HighlightTheme

FoundSpan = tuple[int, int, int]
"""Line, start and end of a marked place."""
_MOST_SPARE_ROWS = 4
_ROWS_PER_SPARE_ROW = 12
"""Rows of the screen for each row that a growing reply reserves, up to ``_MOST_SPARE_ROWS``.

Every new row lays out the screen and scrolls it, which costs more than anything else in the
interface. With more rows there would be a gap below the reply.
"""


class ReplyBody(Widget):
    """Markdown of a reply, painted row by row."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *("em", "strong", "gone", "code", "block", "title-1", "title-2", "title-3", "mark", "edge"),
        FOUND,
        FOUND_NOW,
    }

    def __init__(self, finished: str | None = None) -> None:
        super().__init__(markup=False)
        self.text = ""
        self.is_final = finished is not None
        self._markdown = GrowingMarkdown()
        self._cleaner = ScreenCleaner()
        self._reserved_rows = 0
        self._strips: list[Strip] = []
        """Painted rows, from the first on."""
        self._coloured: dict[tuple[str, str], Content] = {}
        """Coloured code, by text and language of its block; it does not depend on the width."""
        self._code_theme_in_use: type[HighlightTheme] | None = None
        self.found_pattern: re.Pattern[str] | None = None
        """Pattern of the text that is marked; None if nothing is."""
        self._places: list[FoundSpan] | None = None
        """The marked places of the present layout; None until they are needed."""
        self._found_number: int | None = None
        """Number of the marked place that is shown; None if it is in another text."""
        if finished is not None:
            self.append(finished)

    def append(self, text: str) -> None:
        """Add text."""
        self.text += text
        self._places = None
        clean_text = self._cleaner.push(text)
        changed_row = self._guarded(lambda: self._markdown.grow(clean_text))
        if not self._markdown.width:
            return  # the first layout shows it
        del self._strips[changed_row:]
        if len(self._markdown.rows) > self.size.height:
            self.refresh(layout=True)
        elif self.is_attached:
            n_rows = max(1, self.size.height - changed_row)
            self.refresh(Region(0, changed_row, self.size.width, n_rows))

    def finish(self) -> None:
        """Parse the complete text once more, with coloured code."""
        self.is_final = True
        if self._markdown.width:
            self._lay_out(self._markdown.width)
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the rows that the text needs, and spare rows while it grows."""
        if width != self._markdown.width:
            self._lay_out(width)
            self._reserved_rows = 0  # reserved for another width
        n_rows = len(self._markdown.rows)
        if self.is_final:
            return n_rows
        if n_rows > self._reserved_rows or not n_rows:
            n_spare = viewport.height // _ROWS_PER_SPARE_ROW
            self._reserved_rows = n_rows + min(max(n_spare, 1), _MOST_SPARE_ROWS) - bool(n_rows)
        return self._reserved_rows

    def render_line(self, y: int) -> Strip:
        """Return a painted row."""
        width = self.size.width
        if y >= len(self._markdown.rows):
            return Strip.blank(width, self.visual_style.rich_style)
        selection = self.text_selection
        if selection is not None:
            return self._painted(y, selection)
        while len(self._strips) <= y:
            self._strips.append(self._painted(len(self._strips), None))
        return self._strips[y]

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text, without bars and edges."""
        return selection.extract(self._markdown.copied), "\n"

    def notify_style_update(self) -> None:
        """Paint again, because the theme may have changed."""
        super().notify_style_update()
        self._strips.clear()
        if self._markdown.width and self._code_theme_in_use not in (None, self._code_theme):
            self._lay_out(self._markdown.width)

    def mark_found(self, pattern: re.Pattern[str] | None, number: int | None) -> None:
        """Mark the places of a pattern; None removes the marks.

        Args:
            number: number of the place that is shown; None if it is in another text.
        """
        if (pattern, number) != (self.found_pattern, self._found_number):
            if pattern != self.found_pattern:
                self._places = None
            self.found_pattern = pattern
            self._found_number = number
            self._strips.clear()
            self.refresh()

    def row_of_found(self, number: int) -> int:
        """Return the row of a place on the screen; the last place if there are fewer.

        The source of a reply may contain a text more often than its rows.
        """
        places = self._found_places()
        row_index = 0
        if places:
            line, start, _ = places[min(number, len(places) - 1)]
            rows = self._markdown.rows
            row_index = max(
                n for n, row in enumerate(rows) if (row.line, row.offset) <= (line, start)
            )
        return self.content_region.y + row_index

    def _found_places(self) -> list[FoundSpan]:
        """Return line, start and end of each marked place, in the order of the text."""
        if self._places is None:
            self._places = [
                (number, start, end)
                for number, line in enumerate(self._markdown.copied.split("\n"))
                for start, end in spans_in(line, self.found_pattern)
            ]
        return self._places

    def action_link(self, target: str) -> None:
        """Show the address of a link; nothing is opened."""
        self.post_message(LinkChosen(target))

    def _lay_out(self, width: int) -> None:
        self._strips.clear()
        self._places = None
        self._guarded(
            lambda: self._markdown.lay_out(width, self._highlighted, is_whole=self.is_final)
        )

    def _guarded(self, step: Callable[[], int | None]) -> int:
        """Run a step of the parser; if it fails, show the text unparsed."""
        try:
            return step() or 0
        except Exception as error:
            log_without_text(error)
            self._markdown.show_plain()
            return 0

    def _highlighted(self, code: str, language: str) -> Content:
        from textual.highlight import highlight

        if self._code_theme_in_use is not self._code_theme:
            self._coloured = {}
            self._code_theme_in_use = self._code_theme
        if (code, language) not in self._coloured:
            self._coloured[code, language] = highlight(
                code, language=language or None, theme=self._code_theme
            )
        return self._coloured[code, language]

    @property
    def _code_theme(self) -> type[HighlightTheme]:
        from textual import highlight

        if not self.app.native_ansi_color:
            return highlight.HighlightTheme
        if not self.app.current_theme.dark:
            return highlight.ANSILightHighlightTheme
        # Its blue for names of functions is unreadable on black.
        return _readable(highlight.ANSIDarkHighlightTheme)

    def _painted(self, y: int, selection: Selection | None) -> Strip:
        row = self._markdown.rows[y]
        text = self._markdown.rows[y].text
        if selection:
            span = selection.get_span(row.line)
        else:
            span = None
        if span is not None:
            start, end = (edge - row.offset if edge >= 0 else len(text) for edge in span)
            if end > max(0, start):
                chosen = Style.from_styles(self.screen.get_component_styles("screen--selection"))
                text = text.stylize(chosen, max(0, start), end)
        if self.found_pattern is not None:
            text = self._with_marks(row, text)
        strip = self._strip(text).apply_offsets(row.offset, row.line)
        if row.lead:
            return Strip.join([self._strip(row.lead), strip])
        return strip

    def _with_marks(self, row: Row, text: Content) -> Content:
        spans: list[tuple[int, int]] = []
        shown = None
        places = self._found_places()
        first_place = bisect_left(places, (row.line,))
        for n, (line, start, end) in enumerate(places[first_place:], first_place):
            if line != row.line:
                break
            first = max(0, start - row.offset)
            last = min(len(text), end - row.offset)
            if first < last:
                if n == self._found_number:
                    shown = len(spans)
                spans.append((first, last))
        return marked(self, text, spans, shown)

    def _strip(self, content: Content) -> Strip:
        painted = Visual.to_strips(
            self, content, self.size.width, 1, self.visual_style, apply_selection=False
        )
        if painted:
            return painted[0]
        return Strip.blank(0)


@cache
def _readable(theme: type[HighlightTheme]) -> type[HighlightTheme]:
    """Return a theme of code with cyan in place of blue."""
    styles = {
        token: style.replace("ansi_blue", "ansi_cyan") for token, style in theme.STYLES.items()
    }
    return type(f"Readable{theme.__name__}", (theme,), {"STYLES": styles})
