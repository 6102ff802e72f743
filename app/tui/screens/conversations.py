"""The conversations screen: search, open, rename, delete and export saved conversations, and free
the disk that their saved states take.

A thread searches; the screen polls its result.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import field
from datetime import datetime
from functools import partial, partialmethod
from pathlib import Path

from app.conversations import export
from app.conversations import list_rows as rows
from app.conversations.database import cause_of
from app.conversations.last_exchange import LastExchange
from app.conversations.locks import StoreError
from app.conversations.mark_rows import Marks, put_marks, sound_tags
from app.conversations.state_files import saved_bytes
from app.conversations.store import MOST_TITLE_CHARS, ConversationEntry, Store, word_in_texts
from app.program.background import in_background
from app.program.refusals import log_without_text
from app.text import figures
from app.text.clean_text import clean_line
from app.text.record import record
from app.tui.actions import CHAT
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import Line, Span, SpanRole
from app.tui.screens.list_screen import ListScreen
from app.tui.widgets import conversation_rows

_TITLE_CHARS = 40
"""Limit on a title in a question, to leave room for the answers."""
_WHOLE_HINT_COLUMNS = 80
"""Width of the screen from which the hint next to the title is whole, in columns."""
_EMPTY = "No saved conversations yet: each is listed here after its first message."
_PINNED = "Pinned"
_NO_MATCH = "No conversation has all these words."


@record
class SearchResult:
    """Conversations that match, and what they take on disk."""

    hits: tuple[ConversationEntry, ...] = ()
    """Matches, pinned ones first, then the latest day, and within a day the last used first."""
    exchanges: dict[str, LastExchange] = field(default_factory=dict)
    """Last exchange of each match by its id."""
    n_bytes: int = 0
    """Size of all matches with their saved states; what they share counts once."""
    states_bytes: int = 0
    """Size of all saved states, those of no conversation too."""
    trouble: str = ""
    """Reason why the search failed; empty if it succeeded."""


class ConversationsScreen(ListScreen[ConversationEntry]):
    """List of saved conversations."""

    TITLE = "Conversations"
    SCOPE = "conversations"
    BINDINGS = bindings(SCOPE)
    MAX_NEW_CHARS = MOST_TITLE_CHARS
    MOST_DETAIL_COLUMNS = 100

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        assert chat.core.storage.store is not None
        self._chat = chat
        self._chat_session = chat.core.chat_session
        self._store = chat.core.storage.store
        self._edits_tags = False
        """Whether the tags of the edited conversation are being typed, instead of its title."""
        self._delete_id = ""
        """Id of the conversation that the next search deletes first; empty if none."""
        self._running_search: Future[SearchResult] | None = None
        self._is_stale = False
        """Whether the request has changed since the running search started."""
        self._result: SearchResult | None = None
        """Result of the last search; None before the first."""

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
        self._result = self._running_search.result()
        if not self._is_stale:
            return False
        self.message = self.message or self._result.trouble
        self.start_search()
        return True

    def apply_filter(self, text: str) -> None:
        """Search for the typed words."""
        self.filter_text = text
        self.restart_search()

    def items(self) -> tuple[ConversationEntry, ...]:
        """Return the matches of the last search."""
        if self._result is None:
            return ()
        return self._result.hits

    def group_of(self, item: ConversationEntry) -> str:
        """Return the part of the past of a conversation's last use, or that it is pinned."""
        if item.is_pinned:
            return _PINNED
        return rows.period_of(item.changed, self._chat_session.journal.clock_text())

    def is_same(self, item: ConversationEntry, other_item: ConversationEntry) -> bool:
        """Whether two entries are the same conversation."""
        return item.id == other_item.id

    def _is_live(self, entry: ConversationEntry) -> bool:
        """Whether this is the conversation in the chat."""
        return entry.id == self._chat_session.journal.id

    def heading_line(self, columns: int) -> str:
        """Return the names of the columns."""
        return f" {rows.heading(columns - 2)}"

    def row_line(self, item: ConversationEntry, columns: int) -> Line:
        """Return a conversation's row, with a mark if it is open in the chat."""
        mark = Span(self._glyphs.here if self._is_live(item) else " ", SpanRole.WRITING)
        return (
            mark,
            Span(f" {rows.row(item, columns - 2, self._chat_session.journal.clock_text())}"),
        )

    def details(self, item: ConversationEntry, columns: int) -> tuple[str, list[Line]]:
        """Return the full title, and lines with the matching text and the last exchange."""
        exchange = LastExchange()
        if self._result is not None:
            exchange = self._result.exchanges.get(item.id, exchange)
        lines = conversation_rows.details(
            item, exchange, columns, self.detail_rows, bool(self.side_columns), self._glyphs
        )
        return clean_line(item.title, MOST_TITLE_CHARS), lines

    def context_line(self) -> str:
        """Return the new title as typed, or the filter, or a hint."""
        if self.edited_item is not None and self._edits_tags:
            return f"Tags: {self.new_text}_"
        if self.edited_item is not None:
            return f"New title: {self.new_text}_"
        if self.filter_text:
            return f"filter: {self.filter_text}_"
        if self.size.width < _WHOLE_HINT_COLUMNS:
            return "type to search"
        return "type words or #tag to search"

    def state_line(self) -> str:
        """Return the number of matches and their size on disk."""
        result = self._result
        if result is None or not result.hits:
            return ""
        counted = figures.counted(len(result.hits), "conversation")
        return f"{counted} · {figures.byte_size(result.n_bytes)}"

    def empty_text(self) -> str:
        """Return why the list is empty; empty before the first search."""
        if self._result is None or self._result.trouble:
            return ""
        if self.filter_text:
            return _NO_MATCH
        return _EMPTY

    def foot_line(self) -> str:
        """Return a question, a result or what is going on; empty if there is nothing to say."""
        if self.pending_delete is not None:
            title = clean_line(self.pending_delete.title, _TITLE_CHARS)
            if self._is_live(self.pending_delete):
                warning = " It is open in the chat, which starts a new one."
            else:
                warning = ""
            return f"Delete {title}? y deletes it, any other key cancels.{warning}"
        result = self._result
        trouble = "" if result is None else result.trouble
        if self.message or trouble:
            return self.message or trouble
        if self._running_search is not None and not self._running_search.done():
            if self.filter_text:
                return "searching ..."
            return "loading ..."
        if result is not None and result.states_bytes:
            return self._states_line(result.states_bytes)
        return ""

    def _states_line(self, n_bytes: int) -> str:
        used = figures.byte_size(n_bytes)
        quota_bytes = self._chat.core.storage.quota_bytes
        if not quota_bytes:
            return f"Saved states take {used}: jalopy states prune --all deletes them"
        return f"Saved states take {used} of at most {figures.byte_size(quota_bytes)}"

    def key_words(self, item: ConversationEntry | None) -> dict[str, str]:
        """Return the effects of keys, by the names of their actions."""
        if self.edited_item is not None:
            what = "tags" if self._edits_tags else "title"
            return {"open": f"save the {what}", "leave": "cancel"}
        back = "clear the filter" if self.filter_text else "back"
        if item is None:
            return {"leave": back}
        words = {"open": "open", "rename": "rename", "delete": "delete"}
        words |= {"pin": "unpin" if item.is_pinned else "pin", "tag": "tags"}
        words |= {"export": "Markdown", "export_json": "JSON"}
        if item.state_bytes:
            words["free"] = "free its state"
        return {**words, "leave": back}

    # ---- actions

    def action_open(self) -> None:
        """Open the highlighted conversation, or save what is being edited."""
        if self.edited_item is not None and self._edits_tags:
            self._save_tags(self.edited_item)
        elif self.edited_item is not None:
            self._rename(self.edited_item)
        elif (entry := self.highlighted()) is None:
            return
        else:
            word = word_in_texts(self.filter_text, entry)
            self.filter_text = ""
            self.app.switch_mode(CHAT)
            self._chat.call_later(self._chat.conversations.open, entry.id, word)

    def action_rename(self) -> None:
        """Start to edit the title of the highlighted conversation."""
        entry = self.highlighted()
        if entry is not None:
            self._edits_tags = False
            self._begin_edit(entry, entry.title)

    def action_tag(self) -> None:
        """Start to edit the tags of the highlighted conversation."""
        entry = self.highlighted()
        if entry is not None:
            self._edits_tags = True
            self._begin_edit(entry, " ".join(entry.tags))

    def _begin_edit(self, entry: ConversationEntry, text: str) -> None:
        self.edited_item = entry
        self.pending_delete = None
        self.new_text = text
        self.say("")

    def _save_tags(self, entry: ConversationEntry) -> None:
        self.edited_item = None
        tags = sound_tags(self.new_text.split())
        self._change_marks(entry, Marks(entry.is_pinned, tags))

    def action_pin(self) -> None:
        """Pin the highlighted conversation to the top, or unpin it."""
        entry = self.highlighted()
        if entry is not None:
            self._change_marks(entry, Marks(not entry.is_pinned, entry.tags))

    def _change_marks(self, entry: ConversationEntry, marks: Marks) -> None:
        journal = self._chat_session.journal
        if self._is_live(entry):
            journal.change_marks(marks)
            journal.wait_until_saved(1.0)
        else:
            change = partial(self._store.change_marks, entry.id, put_marks(marks))
            self._try(change, "Not changed")
        self.restart_search()

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

    def action_free(self) -> None:
        """Delete the saved states that only the highlighted conversation needs."""
        entry = self.highlighted()
        if entry is None:
            return
        if self._is_live(entry):
            self.say("Not freed: it is open in the chat, which saves its state again")
            return

        def free() -> None:
            freed_bytes = self._store.free_states(entry.id)
            if freed_bytes:
                freed = figures.byte_size(freed_bytes)
                self.message = f"Freed {freed}. Its text stays and is read again when it goes on."
            else:
                self.message = "Nothing freed: other conversations need its saved state, too"

        self._try(free, "Not freed")
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
                text = export.to_json(
                    saved.conversation, saved.model, now, True, entry.title, saved.marks
                )
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


def _search(store: Store, filter_text: str, delete_id: str) -> SearchResult:
    """Delete a conversation if an id is given, then search."""
    trouble = ""
    try:
        try:
            if delete_id:
                store.delete(delete_id)
        except StoreError as error:
            trouble = f"Not deleted: {error}"
        # Sorting keeps the order of use within a day.
        hits = sorted(
            store.search(filter_text),
            key=lambda hit: (hit.is_pinned, hit.changed[:10]),
            reverse=True,
        )
        ids = [hit.id for hit in hits]
        n_bytes = sum(hit.text_bytes for hit in hits) + store.state_bytes(ids)
        states_bytes = saved_bytes()
        return SearchResult(tuple(hits), store.last_exchanges(ids), n_bytes, states_bytes, trouble)
    except StoreError as error:
        return SearchResult(trouble=str(error))
    except Exception as error:
        log_without_text(error)
        return SearchResult(trouble=f"internal error: {type(error).__name__}")
