"""Find a text in the open conversation: mark it in the transcript, and go from place to place."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from app.tui.chat.core import ChatCore
from app.tui.chat.text_search import TextSearch

if TYPE_CHECKING:
    from app.tui.widgets.find_bar import FindBar
    from app.tui.widgets.message_view import MessageView

_ROWS_ABOVE = 2
"""Rows of the transcript above the shown place."""


_MOST_WAITS = 20
"""Limit on the refreshes until a message that was just mounted is laid out."""


class FindText:
    """Search for a text in the open conversation."""

    def __init__(self, core: ChatCore) -> None:
        self._core = core
        self._bar: FindBar | None = None
        """The line for the text; None before the first search."""
        self._search: TextSearch | None = None
        """The running search; None if there is none."""
        self._first_index = 0
        """Index of the message that was at the top of the screen when the search began."""

    async def action_find(self, argument: str = "") -> None:
        """Ask for a text, or find a text."""
        if self._bar is not None and self._bar.has_focus:
            self._bar.action_type()
        elif self._core.chat_session.conversation.messages:
            await self.begin(argument, self._index_in_sight())
        else:
            self._core.say("Nothing to find yet: the conversation is empty")

    async def begin(self, text: str, first_index: int) -> None:
        """Find a text from a message on; with an empty text, ask for it."""
        core = self._core
        self._search = TextSearch(core.chat_session.conversation.messages)
        self._first_index = first_index
        if self._bar is None:
            from app.tui.widgets.find_bar import FindBar

            self._bar = FindBar(core.keymap, self._find, self._step)
            await core.screen.mount(self._bar, after="#middle")
        core.edge.hint("finding text in this conversation")
        self._bar.begin(text)

    def _index_in_sight(self) -> int:
        """Return the index of the first message that is not above the screen."""
        transcript = self._core.transcript
        for view in transcript.messages():
            if view.virtual_region.bottom > transcript.scroll_y:
                index = self._core.index_of(view)
                if index is not None:
                    return index
        return 0

    def _find(self, text: str) -> None:
        assert self._search is not None
        self._search.search(text, self._first_index)
        self._show()

    def _step(self, n_places: int) -> None:
        assert self._search is not None
        self._search.step(n_places)
        self._show()

    def _show(self) -> None:
        """Mark all places in the mounted messages, and bring the shown one into sight."""
        search = self._search
        assert search is not None
        assert self._bar is not None
        transcript = self._core.transcript
        shown_view = transcript.view_near(search.message) if search.message is not None else None
        place = search.place
        for view in transcript.messages():
            number = place.number if place is not None and view is shown_view else None
            view.mark_found(search.pattern, number)
        if shown_view is not None and place is not None:
            scroll = partial(self._scroll_to, shown_view, place.number)
            transcript.call_after_refresh(scroll)
        self._bar.show_count(search.count_line)

    def _scroll_to(self, view: MessageView, number: int, n_waits: int = 0) -> None:
        """Scroll until a place of a message is in sight, once it and the line are laid out."""
        transcript = self._core.transcript
        has_sizes = view.size.height and self._bar is not None and self._bar.size.height
        if not has_sizes and n_waits < _MOST_WAITS:
            again = partial(self._scroll_to, view, number, n_waits + 1)
            transcript.call_after_refresh(again)
            return
        row = transcript.content_row(view.row_of_found(number))
        if not transcript.is_scrolled_up:
            # Textual 8.2 follows the end of a view that became smaller one layout later.
            transcript.scroll_end(animate=False, immediate=True)
        transcript.release_anchor()
        top = transcript.scroll_y
        if not top <= row < top + transcript.scrollable_content_region.height:
            transcript.scroll_to(y=row - _ROWS_ABOVE, animate=False, immediate=True)

    def leave(self) -> bool:
        """Remove the marks and go to the prompt; the transcript stays where it is.

        Returns:
            False if nothing is searched.
        """
        if self._search is None:
            return False
        self._search = None
        if self._bar is not None:
            self._bar.display = False
        for view in self._core.transcript.messages():
            view.mark_found(None, None)
        self._core.edge.hint()
        self._core.prompt.focus()
        return True
