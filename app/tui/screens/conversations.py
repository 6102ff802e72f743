"""The saved conversations: found by what is typed, opened, renamed, deleted, saved as files.

Reading happens in a thread, whose result the screen looks at until it is done.
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

_MOST_ASKED_CHARS = 40
"""Of a title in a question, so that the answers have room after it."""


class ConversationsScreen(ListScreen[ConversationEntry]):
    """Lists conversations while it is shown."""

    TITLE = "Conversations"
    SCOPE = "conversations"
    BINDINGS = bindings(SCOPE)
    MOST_NEW_CHARS = MOST_TITLE_CHARS

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        assert chat.core.storage.store is not None
        self._chat = chat
        self._chat_session = chat.core.chat_session
        self._store = chat.core.storage.store
        self._deleted = ""
        """Id of the conversation that the next look deletes."""
        self._looking: Future[tuple[tuple[ConversationEntry, ...], str]] | None = None
        self._is_stale = False
        """Whether something else was asked for since the look that goes on began."""
        self._hits: tuple[ConversationEntry, ...] = ()
        self._trouble = ""

    def start_looking(self) -> None:
        """Look again, for what is typed; one look at a time."""
        if self._looking is not None and not self._looking.done():
            self._is_stale = True
            return
        look = partial(_look, self._store, self.typed, self._deleted)
        self._looking = in_background(look, "conversations")
        self._deleted = ""
        self._is_stale = False

    def stop_looking(self) -> None:
        """Wait for no search any more."""
        self._looking = None

    def look(self) -> bool:
        """Take what was found; rows stay while they are looked for again."""
        if self._looking is None:
            return False
        if not self._looking.done():
            return True
        self._hits, self._trouble = self._looking.result()
        if not self._is_stale:
            return False
        self.said = self.said or self._trouble
        self.start_looking()
        return True

    def take_typed(self, text: str) -> None:
        """Search."""
        self.typed = text
        self.begin()

    def items(self) -> tuple[ConversationEntry, ...]:
        """Return the conversations that were found."""
        return self._hits

    def is_same(self, one: ConversationEntry, other: ConversationEntry) -> bool:
        """Whether they are one conversation."""
        return one.id == other.id

    def _is_live(self, hit: ConversationEntry) -> bool:
        """Whether it is the conversation in the chat."""
        return hit.id == self._chat_session.journal.id

    def heading_line(self, columns: int) -> str:
        """Name the columns."""
        return f"   {rows.heading(columns - 2)}"

    def row_line(self, item: ConversationEntry, columns: int) -> Line:
        """Mark the conversation that is in the chat."""
        mark = Span(self._glyphs.here if self._is_live(item) else " ", SpanRole.WRITING)
        return (
            mark,
            Span(f" {rows.row(item, columns - 2, self._chat_session.journal.clock_text())}"),
        )

    def details(self, item: ConversationEntry, columns: int) -> tuple[str, list[Line]]:
        """Write the whole title, and where the words are or what it is made of."""
        found: list[Line] = [
            (Span(text),) for one in rows.details(item).splitlines() for text in wrap(one, columns)
        ]
        return clean_line(item.title, MOST_TITLE_CHARS), found

    def context_line(self) -> str:
        """Write the new title, or the filter."""
        if self.edited is not None:
            return f"New title: {self.new_text}_"
        if self.typed:
            return f"filter: {self.typed}_"
        return "type to search in titles and texts"

    def state_line(self) -> str:
        """Write what all of it takes on the disk."""
        kept = sum(hit.text_bytes + hit.state_bytes for hit in self._hits)
        return f"{len(self._hits)}, {figures.size(kept)}"

    def foot_line(self) -> str:
        """Ask, or say what goes on."""
        if self.doomed is not None:
            title = clean_line(self.doomed.title, _MOST_ASKED_CHARS)
            if self._is_live(self.doomed):
                live = " It is open in the chat, where a new one begins."
            else:
                live = ""
            return f"Delete {title}? y deletes it for good, any other key keeps it.{live}"
        if self.said or self._trouble:
            return self.said or self._trouble
        if self._looking is not None and not self._looking.done():
            if self.typed:
                return "searching ..."
            return "reading ..."
        if not self._hits:
            if self.typed:
                return "no conversation has all these words"
            return "No conversation is saved yet."
        return ""

    def key_words(self, item: ConversationEntry | None) -> dict[str, str]:
        """While a title is written, two keys end that."""
        if self.edited is not None:
            return {"open": "keeps the title", "leave": "leaves it as it was"}
        words = {"open": "opens", "rename": "renames", "delete": "deletes"}
        return {**words, "export": "Markdown", "export_json": "JSON", "leave": "back"}

    # ---- what the user asks for

    def action_open(self) -> None:
        """Go on with the conversation under the cursor; keep the new title, where one is being
        written."""
        if self.edited is not None:
            self._rename(self.edited)
        elif (hit := self.highlighted()) is None:
            return
        else:
            self.typed = ""
            self.app.switch_mode(CHAT)
            self._chat.call_later(self._chat.conversations.open, hit.id)

    def action_rename(self) -> None:
        """Write another title."""
        hit = self.highlighted()
        if hit is not None:
            self.edited = hit
            self.doomed = None
            self.new_text = hit.title
            self.say("")

    def _rename(self, hit: ConversationEntry) -> None:
        self.edited = None
        title = clean_line(" ".join(self.new_text.split()), MOST_TITLE_CHARS)
        chat_session = self._chat_session
        if title and self._is_live(hit):
            chat_session.journal.rename(title)
            chat_session.journal.wait_until_saved(1.0)
        elif title:
            self._try(lambda: self._store.rename(hit.id, title), "not renamed")
        self.begin()

    def delete(self, hit: ConversationEntry) -> None:
        """Delete a conversation."""
        if self._is_live(hit):
            self.call_later(self._delete_shown_in_chat)
            return
        self._deleted = hit.id
        self.begin()

    async def _delete_shown_in_chat(self) -> None:
        trouble = await self._chat.conversations.delete_live()
        if trouble:
            self.said = f"not deleted: {trouble}"
        else:
            self.said = ""
        self.begin()

    def action_export(self, kind: str = "md") -> None:
        """Save the conversation as Markdown, or as JSON, in the present directory."""
        hit = self.highlighted()
        if hit is None:
            return

        def save() -> None:
            saved = self._store.read(hit.id)
            now = datetime.now().astimezone()
            path = export.choose_path("", now).with_suffix(f".{kind}")
            path = path.with_stem(f"{path.stem}-{int(hit.id)}")
            if kind == "json":
                as_text = export.to_json
            else:
                as_text = export.to_markdown
            export.write_new(path, as_text(saved.conversation, saved.model, now, True))
            self.said = f"saved: {Path(path).absolute()}"

        self._try(save, "not saved")
        self.show()

    action_export_json = partialmethod(action_export, "json")

    def _try(self, work: Callable[[], None], failed: str) -> None:
        try:
            work()
        except FileExistsError as error:
            self.said = f"{failed}: {clean_line(str(error.filename), 120)} exists already"
        except StoreError as error:
            self.said = f"{failed}: {error}"
        except OSError as error:
            self.said = f"{failed}: {cause_of(error)}"


def _look(store: Store, typed: str, deleted: str) -> tuple[tuple[ConversationEntry, ...], str]:
    """Return the conversations that have what was typed, once one is deleted, and why there are
    none or it is not."""
    trouble = ""
    try:
        try:
            if deleted:
                store.delete(deleted)
        except StoreError as error:
            trouble = f"not deleted: {error}"
        return tuple(store.search(typed)), trouble
    except StoreError as error:
        return (), str(error)
    except Exception as error:
        log_without_text(error)
        return (), f"internal error: {type(error).__name__}"
