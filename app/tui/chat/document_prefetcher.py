"""Has the model read the documents of the shelf while nothing is asked, so that a question about
any finds it read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from pathlib import Path

from app.backend.engine_thread import EngineThread
from app.backend.protocol import DocumentToRead
from app.backend.status import Activity
from app.conversations.conversation import SYSTEM, USER, PromptMessage
from app.conversations.document_list import (
    DocumentEntry,
    list_documents,
    load_document,
    remove_document,
)
from app.conversations.journal import ConversationStorage
from app.conversations.older_files import vectors_path
from app.conversations.store import Store
from app.documents.embedding_index import EmbeddingFile, EmbeddingIndex
from app.documents.passages import PASSAGE_CHARS, cut, fit
from app.documents.read import Document, read_documents
from app.program.background import in_background
from app.program.bundled_model import is_starter
from app.session.chat_session import ChatSession
from app.session.events import DocumentRead
from app.session.request import Request
from app.tui.chat_options import may_read_ahead
from app.tui.live_settings import LiveSettings

QUIET_S = 10.0
"""Nothing is read before nothing was asked or typed for so long: a title comes first."""
MOST_READ = 50
"""Of the documents used last."""
QUOTA_SHARE = 0.5
"""How much of what all saved states may take is for documents that no one asked about by now."""


class DocumentPrefetcher:
    """Knows how much of each document is saved for the open model, and has the rest read, the one
    used last first."""

    def __init__(
        self,
        engine_thread: EngineThread,
        chat_session: ChatSession,
        storage: ConversationStorage,
        live: LiveSettings,
    ) -> None:
        self._engine_thread = engine_thread
        self._chat_session = chat_session
        self._live = live
        vectors = None
        if storage.store is not None and storage.store.root is not None:
            vectors = vectors_path(storage.store.root)
        self.meaning = EmbeddingIndex(vectors, self._embedding_file)
        self._learning: Future[bool] | None = None
        self._learned: set[str] = set()
        """Documents whose vectors are there, as far as they can be made."""
        self._store = storage.store
        self._quota_bytes = storage.quota_bytes
        self.listing: Future[tuple[DocumentEntry, ...]] | None = None
        """What is on the shelf; None where that is to be found out."""
        self._known: dict[str, DocumentRead] = {}
        self._tried: dict[str, bool] = {}
        """Documents that the engine has had, and whether it was to read them."""
        self._holds_for: tuple[object, ...] = ()
        """The model and the system prompt that this holds for."""
        self._quiet_since_s: float | None = None
        self._is_at_work = False
        """Whether the engine has a document."""
        self.trouble = ""
        """Why nothing more is read; "" for no trouble."""

    def _embedding_file(self) -> EmbeddingFile | None:
        from app.models.library.header import embedding_file  # no first frame waits for it

        return embedding_file(self._live.now)

    def _may_read(self) -> bool:
        """Whether the engine may work before anything is asked."""
        return may_read_ahead(self._live.now)

    def known(self, document: DocumentEntry) -> DocumentRead | None:
        """How much of a document is saved for the open model; None where that is not known yet."""
        if self._holds_for == self._wants_for:
            return self._known.get(document.key)
        return None

    def tokens(self, document: DocumentEntry) -> int:
        """How many tokens the open model makes of a document, about."""
        return round(
            document.about_tokens
            * (
                self._chat_session.model.tokens_ratio
                if self._chat_session.model is not None
                else 1.0
            )
        )

    def fits(self, document: DocumentEntry) -> bool:
        """Whether the open model's context has room for a document; else passages of it go with
        questions."""
        sized = Document(document.name, Path(), "", self.tokens(document))
        return fit(
            [sized], self._chat_session.model.n_ctx if self._chat_session.model is not None else 0
        )

    def look_again(self, deleted: DocumentEntry | None = None) -> None:
        """Find out again what is on the shelf, ``deleted`` no more, and at once how much of each
        document is saved."""
        assert self._store is not None
        self.note_change()
        others = [
            one.files
            for key, one in self._known.items()
            if deleted is not None and key != deleted.key
        ]
        look = partial(_listed, self._store, self.meaning, deleted, frozenset(chain(*others)))
        self.listing = in_background(look, "shelf")
        self._known = {}
        self._tried = {}
        self._learned = set()
        self._quiet_since_s = self._engine_thread.now_s() - QUIET_S

    def note_change(self) -> None:
        """Other documents may be on the shelf now, and there may be room again."""
        self.listing = None
        if self.trouble:
            self.trouble = ""
            self._tried = {}

    def give_way(self) -> None:
        """Read nothing now: somebody types."""
        self._quiet_since_s = None
        if self._is_at_work and self._engine_thread.inbox.idle_work.is_pending:
            self._engine_thread.inbox.idle_work.drop()

    def note(self, event: DocumentRead) -> None:
        """The engine tells how far it is."""
        self.trouble = event.trouble or self.trouble
        self._known[event.key] = event
        if event.is_interrupted:
            self._tried.pop(event.key, None)

    def go_on(self, is_quiet: bool) -> None:
        """Hand the next document to the engine, once it was quiet for long enough; costs nothing
        otherwise."""
        engine_thread = self._engine_thread
        model = self._chat_session.model
        if engine_thread.inbox.idle_work.is_pending:
            return
        self._is_at_work = False
        if (
            model is None
            or model.server
            or is_starter(model.path)
            or self._store is None
            or not self._quota_bytes
        ):
            return
        if (
            not is_quiet
            or self._chat_session.is_busy
            or engine_thread.status.activity is not Activity.READY
        ):
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = engine_thread.now_s()
        elif engine_thread.now_s() - self._quiet_since_s >= QUIET_S:
            self._hand_over(self._store)

    def _hand_over(self, store: Store) -> None:
        if self._holds_for != self._wants_for:
            self._holds_for = self._wants_for
            self._known = {}
            self._tried = {}
        if self.listing is None:
            self.listing = in_background(partial(_listed, store, self.meaning), "shelf")
        if not self.listing.done() or self.listing.exception() is not None or store.root is None:
            return
        documents = [
            one for one in self.listing.result()[:MOST_READ] if self.fits(one) and not one.path
        ]
        uncounted = next(
            (one for one in documents if one.key not in self._known and one.key not in self._tried),
            None,
        )
        wanted = uncounted or self._next_to_read(documents)
        if wanted is not None:
            request = partial(_beginning, store, wanted, self._chat_session.conversation.system)
            state = store.root / wanted.conversations[0]
            is_read = uncounted is None
            if self._engine_thread.read_document(
                DocumentToRead(wanted.key, request, state, is_read)
            ):
                self._is_at_work = True
                self._tried[wanted.key] = is_read
        else:
            self._learn_next(self.listing.result())

    def _learn_next(self, listed: Sequence[DocumentEntry]) -> None:
        """Have vectors made of the next document that goes in passages."""
        if not self._may_read() or (self._learning is not None and not self._learning.done()):
            return
        wanted = next(
            (one for one in listed[:MOST_READ] if one.path and one.key not in self._learned), None
        )
        if wanted is not None:
            self._learning = in_background(partial(self._learn, wanted), "vectors")

    def _learn(self, document: DocumentEntry) -> bool:
        texts = [
            one.text
            for read in read_documents([document.path]).documents
            for one in cut(read, PASSAGE_CHARS)
        ]
        is_done = self.meaning.learn(document.key, texts, self._stays_quiet)
        if is_done:
            self._learned.add(document.key)
        return is_done

    def _stays_quiet(self) -> bool:
        return self._quiet_since_s is not None and not self._chat_session.is_busy

    def _next_to_read(self, documents: list[DocumentEntry]) -> DocumentEntry | None:
        room_bytes = self._quota_bytes * QUOTA_SHARE
        for one in documents if self._may_read() and not self.trouble else ():
            known = self._known.get(one.key)
            if known is not None and known.n_bytes <= room_bytes:
                room_bytes -= known.n_bytes
                if not known.is_whole and not self._tried.get(one.key):
                    return one
        return None

    @property
    def _wants_for(self) -> tuple[object, ...]:
        model = self._chat_session.model
        return model.path if model is not None else None, self._chat_session.conversation.system


def _listed(
    store: Store,
    meaning: EmbeddingIndex,
    deleted: DocumentEntry | None = None,
    kept: Iterable[Path] = (),
) -> tuple[DocumentEntry, ...]:
    if deleted is not None:
        remove_document(store, deleted, kept)
    listed = list_documents(store)
    meaning.keep_only([one.key for one in listed])
    return listed


def _beginning(store: Store, document: DocumentEntry, system: str | None) -> Request:
    """Return what a new conversation about a document begins with.

    Raises StoreError: it is not there any more.
    """
    asked = PromptMessage(USER, load_document(store, document).in_message.strip())
    return Request((PromptMessage(SYSTEM, system), asked) if system else (asked,))
