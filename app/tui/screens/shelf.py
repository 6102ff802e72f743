"""The shelf: documents that were read, how much of each the open model need not read again; asked
about, deleted."""

from __future__ import annotations

from textwrap import wrap

from app.conversations.document_list import DocumentEntry, load_document
from app.conversations.list_rows import moment_text
from app.conversations.locks import StoreError
from app.program.refusals import log_without_text
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import cut
from app.tui.actions import CHAT
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import Line, Span
from app.tui.screens.list_screen import ListScreen

_MOST_ASKED_CHARS = 40
_LEAST_NAME = 12
_WITH_DATE = 71
_EMPTY = (
    "No document was read yet: /read FILE with a question puts one here, and so does jalopy read "
    "MODEL FILE."
)


class ShelfScreen(ListScreen[DocumentEntry]):
    """Lists documents while it is shown, and what is asked about one of them."""

    TITLE = "Documents"
    SCOPE = "shelf"
    BINDINGS = bindings(SCOPE)

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        self._chat = chat
        self._reading = chat.core.documents
        self._found: tuple[DocumentEntry, ...] | None = None

    def start_looking(self) -> None:
        """Look again."""
        self._reading.look_again()

    def look(self) -> bool:
        """Take what was found; documents are read, and counted, as long as the list is shown."""
        listing = self._reading.listing
        if listing is not None and listing.done():
            try:
                self._found = listing.result()
            except Exception as error:
                is_told = isinstance(error, StoreError)
                if is_told:
                    trouble = str(error)
                else:
                    trouble = f"internal error: {type(error).__name__}"
                if self.said != trouble:  # once: what is left is listed
                    self.said = trouble
                    if not is_told:
                        log_without_text(error)
                    self._reading.look_again()
        return True

    def items(self) -> tuple[DocumentEntry, ...]:
        """Return those whose names have what is typed."""
        words = self.typed.casefold().split()
        return tuple(
            one for one in self._found or () if all(word in one.name.casefold() for word in words)
        )

    def is_same(self, one: DocumentEntry, other: DocumentEntry) -> bool:
        """Whether they are one document."""
        return one.key == other.key

    def heading_line(self, columns: int) -> str:
        """Name the columns."""
        return (
            f"   {_row('document', 'length', 'tokens', 'read', 'disk', 'last used', columns - 2)}"
        )

    def row_line(self, item: DocumentEntry, columns: int) -> Line:
        """Write what a document is, how much of it is read, and what it takes."""
        known = self._reading.known(item)
        if known:
            tokens = figures.count(known.tokens)
        else:
            tokens = f"~{figures.count(self._reading.tokens(item))}"
        if known and known.tokens:
            share = f"{100 * known.saved_tokens // known.tokens} %"
        else:
            share = "-"
        if item.path or not self._reading.fits(item):
            share = "passages"
        size = figures.size(item.states_bytes + item.text_bytes)
        moment = moment_text(item.changed)
        return (
            Span(f"  {_row(item.name, item.extent, tokens, share, size, moment, columns - 2)}"),
        )

    def details(self, item: DocumentEntry, columns: int) -> tuple[str, list[Line]]:
        """Say how ready a document is for questions, and where it was used."""
        others = len(item.conversations) - 1
        used = f'last in "{item.title}"' + (
            f", and in {figures.counted(others, 'other')}" if others else ""
        )
        said = f"{self._readiness(item)} · text {figures.size(item.text_bytes)} · {used}"
        if item.path:
            said = f"{self._readiness(item)} · read from {item.path} · {used}"
        return clean_line(item.name, 120), [(Span(text),) for text in wrap(said, columns)]

    def _readiness(self, item: DocumentEntry) -> str:
        known = self._reading.known(item)
        if item.path or not self._reading.fits(item):
            return "too long for the context: passages of it answer questions"
        if known is not None and known.is_whole:
            return "all of it is read: a question begins at once"
        return "not all of it is read: the rest is read with a question, if not before"

    def state_line(self) -> str:
        """Write how many there are."""
        return figures.counted(len(self._found or ()), "document")

    def foot_line(self) -> str:
        """Ask, or say what goes on."""
        if self.doomed is not None:
            name = clean_line(self.doomed.name, _MOST_ASKED_CHARS)
            kept = "Conversations about it keep its text."
            return (
                f"Delete {name} and what was read of it? y deletes for good, any other key keeps "
                f"it. {kept}"
            )
        if self.said or self._found is None:
            return self.said or "looking ..."
        if not self._found:
            return _EMPTY
        if not self.items():
            return "no document has all these words in its name"
        if self._reading.trouble:
            return f"nothing more is read: {self._reading.trouble}"
        return ""

    def key_words(self, item: DocumentEntry | None) -> dict[str, str]:
        """Return what keys do."""
        return {"open": "asks about it", "delete": "deletes", "leave": "back"}

    # ---- what the user asks for

    def action_open(self) -> None:
        """Begin a conversation that the document under the cursor goes with."""
        item = self.highlighted()
        store = self._chat.core.storage.store
        if item is None or store is None:
            return
        try:
            document = item.path or load_document(store, item)
        except StoreError as error:
            self.say(str(error))
            return
        self.app.switch_mode(CHAT)
        self._chat.call_later(self._chat.ask_about, document)

    def action_delete(self) -> None:
        """Ask whether to delete the document under the cursor; it is not read meanwhile."""
        self._reading.give_way()
        super().action_delete()

    def delete(self, item: DocumentEntry) -> None:
        """Take a document off the shelf."""
        self._reading.look_again(item)


def _row(
    name: str, extent: str, tokens: str, share: str, size: str, moment: str, columns: int
) -> str:
    tail = f"  {extent:>12}  {tokens:>8}  {share:>8}  {size:>5}"
    if columns >= _WITH_DATE:
        tail += f"  {moment:<16}"
    width = max(_LEAST_NAME, columns - len(tail))
    return f"{cut(name, width):<{width}}{tail}"
