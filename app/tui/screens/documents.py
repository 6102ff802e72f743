"""The documents screen: lists documents that were sent to the model, asks about or deletes one."""

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

_NAME_CHARS = 40
"""Limit on a document's name in a question."""
_LEAST_NAME_COLUMNS = 12
_DATE_FROM_COLUMNS = 71
"""Width from which the column of dates is shown."""
_EMPTY = """\
No documents yet

Drop a file on the chat, or type there:
/read report.pdf
@report.pdf What does it say about fans?

It then appears here, and answers start at once."""


class DocumentsScreen(ListScreen[DocumentEntry]):
    """List of documents. While it is shown, the model reads them ahead of questions."""

    TITLE = "Documents"
    SCOPE = "documents"
    BINDINGS = bindings(SCOPE)

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        self._chat = chat
        self._prefetcher = chat.core.documents
        self._documents: tuple[DocumentEntry, ...] | None = None
        """Documents; None until the first list is complete."""

    def start_search(self) -> None:
        """List the documents again."""
        self._prefetcher.list_again()

    def poll(self) -> bool:
        """Take the finished list; always return True, because reading goes on while it is shown."""
        listing = self._prefetcher.listing
        if listing is not None and listing.done():
            try:
                self._documents = listing.result()
            except Exception as error:
                self._report_failure(error)
        return True

    def _report_failure(self, error: Exception) -> None:
        is_expected = isinstance(error, StoreError)
        if is_expected:
            message = str(error)
        else:
            message = f"internal error: {type(error).__name__}"
        if self.message == message:  # reported already
            return
        self.message = message
        if not is_expected:
            log_without_text(error)
        self._prefetcher.list_again()

    def items(self) -> tuple[DocumentEntry, ...]:
        """Return the documents whose names contain all words of the filter."""
        words = self.filter_text.casefold().split()
        return tuple(
            document
            for document in self._documents or ()
            if all(word in document.name.casefold() for word in words)
        )

    def is_same(self, item: DocumentEntry, other_item: DocumentEntry) -> bool:
        """Whether two entries are the same document."""
        return item.key == other_item.key

    def heading_line(self, columns: int) -> str:
        """Return the names of the columns."""
        names = _row("document", "length", "tokens", "read", "disk", "last used", columns - 2)
        return f" {names}"

    def row_line(self, item: DocumentEntry, columns: int) -> Line:
        """Return a document's row: its length, how much of it is read, and its size on disk."""
        reading = self._prefetcher.progress_of(item)
        if reading:
            tokens = figures.count(reading.tokens)
        else:
            tokens = f"~{figures.count(self._prefetcher.n_tokens(item))}"
        if item.path or not self._prefetcher.fits(item):
            share = "passages"
        elif self._is_read_together(item):
            share = "together"
        elif reading and reading.tokens:
            share = f"{100 * reading.saved_tokens // reading.tokens} %"
        else:
            share = "-"
        size = figures.size(item.states_bytes + item.text_bytes)
        moment = moment_text(item.changed)
        return (
            Span(f"  {_row(item.name, item.extent, tokens, share, size, moment, columns - 2)}"),
        )

    def details(self, item: DocumentEntry, columns: int) -> tuple[str, list[Line]]:
        """Return the document's name, and lines on its readiness and its conversations."""
        usage = f'last used in "{item.title}"'
        n_others = len(item.conversations) - 1
        if n_others:
            usage += f" and {figures.counted(n_others, 'other')}"
        if item.path:
            origin = f"file {item.path}"
        else:
            origin = f"text {figures.size(item.text_bytes)}"
        text = f"{self._readiness(item)} · {origin} · {usage}"
        return clean_line(item.name, 120), [(Span(row),) for row in wrap(text, columns)]

    def _readiness(self, item: DocumentEntry) -> str:
        if item.path or not self._prefetcher.fits(item):
            return "Too long for the context: each question gets the passages that match it"
        reading = self._prefetcher.progress_of(item)
        if reading is not None and reading.is_whole:
            return "Ready: answers start immediately"
        if self._is_read_together(item):
            return (
                f"Read together with {clean_line(item.first_name, _NAME_CHARS)}; "
                "a question about it alone reads it once more"
            )
        return "Partly read: the rest is read ahead, or with your question"

    def _is_read_together(self, item: DocumentEntry) -> bool:
        """Return whether a document was read after another one in the same prompt, and not
        yet on its own."""
        reading = self._prefetcher.progress_of(item)
        return bool(item.first_name) and (reading is None or not reading.is_whole)

    def state_line(self) -> str:
        """Return the number of documents."""
        return figures.counted(len(self._documents or ()), "document")

    def empty_text(self) -> str:
        """Return how a document gets into the list."""
        if self._documents == ():
            return _EMPTY
        return ""

    def foot_line(self) -> str:
        """Return a question, a failure or a hint; empty if there is nothing to say."""
        if self.pending_delete is not None:
            name = clean_line(self.pending_delete.name, _NAME_CHARS)
            return (
                f"Delete {name} and its cached reading? y deletes, any other key cancels. "
                "Conversations keep its text."
            )
        if self.message:
            return self.message
        if self._documents is None:
            return "loading ..."
        if self._documents and not self.items():
            return "No document has all these words in its name"
        if self._prefetcher.trouble:
            return f"Reading ahead has stopped: {self._prefetcher.trouble}"
        return ""

    def key_words(self, item: DocumentEntry | None) -> dict[str, str]:
        """Return the effects of keys, by the names of their actions."""
        if item is None:
            return {"leave": "back"}
        return {"open": "ask about it", "delete": "delete", "leave": "back"}

    # ---- actions

    def action_open(self) -> None:
        """Start a conversation with the highlighted document attached."""
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
        """Ask whether to delete the highlighted document; reading ahead pauses meanwhile."""
        self._prefetcher.pause()
        super().action_delete()

    def delete(self, item: DocumentEntry) -> None:
        """Delete a document from the list."""
        self._prefetcher.list_again(item)


def _row(
    name: str, extent: str, tokens: str, share: str, size: str, moment: str, columns: int
) -> str:
    tail = f"  {extent:>12}  {tokens:>8}  {share:>8}  {size:>5}"
    if columns >= _DATE_FROM_COLUMNS:
        tail += f"  {moment:<16}"
    width = max(_LEAST_NAME_COLUMNS, columns - len(tail))
    return f"{cut(name, width):<{width}}{tail}"
