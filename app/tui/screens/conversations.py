"""The conversations screen: search, open, rename, delete and export saved conversations.

A thread searches; the screen polls its result.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from functools import partial, partialmethod
from pathlib import Path
from textwrap import wrap

from app.conversations import export
from app.conversations import list_rows as rows
from app.conversations.database import cause_of
from app.conversations.locks import StoreError
from app.conversations.store import MOST_TITLE_CHARS, ConversationEntry, Store
from app.program.background import in_background
from app.program.refusals import log_without_text
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.actions import CHAT
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import Line, Span, SpanRole
from app.tui.screens.list_screen import ListScreen

_TITLE_CHARS = 40
"""Limit on a title in a question, to leave room for the answers."""


class ConversationsScreen(ListScreen[ConversationEntry]):
    """List of saved conversations."""

    TITLE = "Conversations"
    SCOPE = "conversations"
    BINDINGS = bindings(SCOPE)
    MAX_NEW_CHARS = MOST_TITLE_CHARS

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        assert chat.core.storage.store is not None
        self._chat = chat
        self._chat_session = chat.core.chat_session
        self._store = chat.core.storage.store
        self._delete_id = ""
        """Id of the conversation that the next search deletes first; empty if none."""
        self._running_search: Future[tuple[tuple[ConversationEntry, ...], str]] | None = None
        self._is_stale = False
        """Whether the request has changed since the running search started."""
        self._hits: tuple[ConversationEntry, ...] = ()
        """Matches of the last search."""
        self._trouble = ""
        """Reason why the last search failed; empty if it succeeded."""

    def start_search(self) -> None:
        """Start a search for the filter, or mark the running one as stale."""
        if self._running_search is not None and not self._running_search.done():
            self._is_stale = True
            return
        search = partial(_search, self._store, self.filter_text, self._delete_id)
        self._running_search = in_background(search, "conversations")
        self._delete_id = ""
        self._is_stale = False

    def stop_search(self) -> None:
        """Ignore the running search."""
        self._running_search = None

    def poll(self) -> bool:
        """Take the result of the search; start again if it is stale."""
        if self._running_search is None:
            return False
        if not self._running_search.done():
            return True
        self._hits, self._trouble = self._running_search.result()
        if not self._is_stale:
            return False
        self.message = self.message or self._trouble
        self.start_search()
        return True

    def apply_filter(self, text: str) -> None:
        """Search for the typed words."""
        self.filter_text = text
        self.restart_search()

    def items(self) -> tuple[ConversationEntry, ...]:
        """Return the matches of the last search."""
        return self._hits

    def is_same(self, item: ConversationEntry, other_item: ConversationEntry) -> bool:
        """Whether two entries are the same conversation."""
        return item.id == other_item.id

    def _is_live(self, entry: ConversationEntry) -> bool:
        """Whether this is the conversation in the chat."""
        return entry.id == self._chat_session.journal.id

    def heading_line(self, columns: int) -> str:
        """Return the names of the columns."""
        return f"   {rows.heading(columns - 2)}"

    def row_line(self, item: ConversationEntry, columns: int) -> Line:
        """Return a conversation's row, with a mark if it is open in the chat."""
        mark = Span(self._glyphs.here if self._is_live(item) else " ", SpanRole.WRITING)
        return (
            mark,
            Span(f" {rows.row(item, columns - 2, self._chat_session.journal.clock_text())}"),
        )

    def details(self, item: ConversationEntry, columns: int) -> tuple[str, list[Line]]:
        """Return the full title, and lines with the matching text or the contents."""
        lines: list[Line] = [
            (Span(row),) for text in rows.details(item).splitlines() for row in wrap(text, columns)
        ]
        return clean_line(item.title, MOST_TITLE_CHARS), lines

    def context_line(self) -> str:
        """Return the new title as typed, or the filter, or a hint."""
        if self.edited_item is not None:
            return f"New title: {self.new_text}_"
        if self.filter_text:
            return f"filter: {self.filter_text}_"
        return "type to search in titles and texts"

    def state_line(self) -> str:
        """Return the number of matches and their size on disk."""
        n_bytes = sum(entry.text_bytes + entry.state_bytes for entry in self._hits)
        return f"{len(self._hits)}, {figures.size(n_bytes)}"

    def foot_line(self) -> str:
        """Return a question, a result or what is going on; empty if there is nothing to say."""
        if self.pending_delete is not None:
            title = clean_line(self.pending_delete.title, _TITLE_CHARS)
            if self._is_live(self.pending_delete):
                warning = " It is open in the chat, which starts a new one."
            else:
                warning = ""
            return f"Delete {title}? y deletes it, any other key cancels.{warning}"
        if self.message or self._trouble:
            return self.message or self._trouble
        if self._running_search is not None and not self._running_search.done():
            if self.filter_text:
                return "searching ..."
            return "loading ..."
        if not self._hits:
            if self.filter_text:
                return "No conversation has all these words"
            return "No saved conversations yet"
        return ""

    def key_words(self, item: ConversationEntry | None) -> dict[str, str]:
        """Return the effects of keys, by the names of their actions."""
        if self.edited_item is not None:
            return {"open": "save the title", "leave": "cancel"}
        words = {"open": "open", "rename": "rename", "delete": "delete"}
        return {**words, "export": "Markdown", "export_json": "JSON", "leave": "back"}

    # ---- actions

    def action_open(self) -> None:
        """Open the highlighted conversation, or save the title that is being edited."""
        if self.edited_item is not None:
            self._rename(self.edited_item)
        elif (entry := self.highlighted()) is None:
            return
        else:
            self.filter_text = ""
            self.app.switch_mode(CHAT)
            self._chat.call_later(self._chat.conversations.open, entry.id)

    def action_rename(self) -> None:
        """Start to edit the title of the highlighted conversation."""
        entry = self.highlighted()
        if entry is not None:
            self.edited_item = entry
            self.pending_delete = None
            self.new_text = entry.title
            self.say("")

    def _rename(self, entry: ConversationEntry) -> None:
        self.edited_item = None
        title = clean_line(" ".join(self.new_text.split()), MOST_TITLE_CHARS)
        chat_session = self._chat_session
        if title and self._is_live(entry):
            chat_session.journal.rename(title)
            chat_session.journal.wait_until_saved(1.0)
        elif title:
            self._try(lambda: self._store.rename(entry.id, title), "Not renamed")
        self.restart_search()

    def delete(self, entry: ConversationEntry) -> None:
        """Delete a conversation."""
        if self._is_live(entry):
            self.call_later(self._delete_shown_in_chat)
            return
        self._delete_id = entry.id
        self.restart_search()

    async def _delete_shown_in_chat(self) -> None:
        trouble = await self._chat.conversations.delete_live()
        if trouble:
            self.message = f"Not deleted: {trouble}"
        else:
            self.message = ""
        self.restart_search()

    def action_export(self, extension: str = "md") -> None:
        """Save the conversation as Markdown or JSON in the current directory."""
        entry = self.highlighted()
        if entry is None:
            return

        def save() -> None:
            saved = self._store.read(entry.id)
            now = datetime.now().astimezone()
            path = export.choose_path("", now, entry.title, f".{extension}")
            if extension == "json":
                text = export.to_json(saved.conversation, saved.model, now, True)
            else:
                text = export.to_markdown(saved.conversation, saved.model, now, True, True)
            export.write_new(path, text)
            self.message = f"Saved: {Path(path).absolute()}"

        self._try(save, "Not saved")
        self.show()

    action_export_json = partialmethod(action_export, "json")

    def _try(self, work: Callable[[], None], failed: str) -> None:
        try:
            work()
        except FileExistsError as error:
            self.message = f"{failed}: {clean_line(str(error.filename), 120)} already exists"
        except StoreError as error:
            self.message = f"{failed}: {error}"
        except OSError as error:
            self.message = f"{failed}: {cause_of(error)}"


def _search(
    store: Store, filter_text: str, delete_id: str
) -> tuple[tuple[ConversationEntry, ...], str]:
    """Delete a conversation if an id is given, then search.

    Return the matches and the reason of a failure, which is empty on success.
    """
    trouble = ""
    try:
        try:
            if delete_id:
                store.delete(delete_id)
        except StoreError as error:
            trouble = f"Not deleted: {error}"
        return tuple(store.search(filter_text)), trouble
    except StoreError as error:
        return (), str(error)
    except Exception as error:
        log_without_text(error)
        return (), f"internal error: {type(error).__name__}"
