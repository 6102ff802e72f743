"""Reads documents ahead: while the engine is idle, so that questions about them start at once."""

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
"""Seconds without a request or a key before documents are read; a title is written first."""
MAX_DOCUMENTS = 50
"""Limit on documents that are read: those that were used last."""
QUOTA_SHARE = 0.5
"""Share of the quota for saved states that documents without a question may take."""


class DocumentPrefetcher:
    """Hands documents to the engine while it is idle, the one that was used last first."""

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
        self.embeddings = EmbeddingIndex(vectors, self._embedding_file)
        self._embedding: Future[bool] | None = None
        """Vectors that are being made of a document."""
        self._embedded: set[str] = set()
        """Keys of documents whose vectors are made."""
        self._store = storage.store
        self._quota_bytes = storage.quota_bytes
        self.listing: Future[tuple[DocumentEntry, ...]] | None = None
        """The list of documents; None if it must be made again."""
        self._progress: dict[str, DocumentRead] = {}
        """How much of each document is saved, by key."""
        self._tried: dict[str, bool] = {}
        """Keys of documents that the engine had, and whether it was to read them."""
        self._valid_for: tuple[object, ...] = ()
        """Model and system prompt for which the progress is valid."""
        self._quiet_since_s: float | None = None
        self._is_at_work = False
        """Whether the engine has a document."""
        self.trouble = ""
        """Reason why no more documents are read; "" for none."""

    def _embedding_file(self) -> EmbeddingFile | None:
        from app.models.library.header import embedding_file  # not needed for the first frame

        return embedding_file(self._live.now)

    def _may_read(self) -> bool:
        """Return whether the settings let the engine work while it is idle."""
        return may_read_ahead(self._live.now)

    # ---- about the documents

    def progress_of(self, document: DocumentEntry) -> DocumentRead | None:
        """Return how much of a document is saved for the open model; None if that is unknown."""
        if self._valid_for == self._model_and_system:
            return self._progress.get(document.key)
        return None

    def n_tokens(self, document: DocumentEntry) -> int:
        """Return an estimate of the tokens of a document in the open model's vocabulary."""
        model = self._chat_session.model
        if model is None:
            return document.about_tokens
        return round(document.about_tokens * model.tokens_ratio)

    def fits(self, document: DocumentEntry) -> bool:
        """Return whether a document fits the open model's context; else passages of it are sent."""
        model = self._chat_session.model
        n_ctx = model.n_ctx if model is not None else 0
        return fit([Document(document.name, Path(), "", self.n_tokens(document))], n_ctx)

    @property
    def _model_and_system(self) -> tuple[object, ...]:
        model = self._chat_session.model
        path = model.path if model is not None else None
        return path, self._chat_session.conversation.system

    # ---- changes

    def list_again(self, deleted: DocumentEntry | None = None) -> None:
        """List the documents again, and find out how much of each is saved.

        Args:
            deleted: a document that is deleted first.
        """
        assert self._store is not None
        self.invalidate()
        saved_files = [
            progress.files
            for key, progress in self._progress.items()
            if deleted is not None and key != deleted.key
        ]
        files_in_use = frozenset(chain(*saved_files))
        make_list = partial(_list, self._store, self.embeddings, deleted, files_in_use)
        self.listing = in_background(make_list, "documents list")
        self._progress = {}
        self._tried = {}
        self._embedded = set()
        self._quiet_since_s = self._engine_thread.now_s() - QUIET_S

    def invalidate(self) -> None:
        """Make the list again when it is next needed: documents or free space may have changed."""
        self.listing = None
        if self.trouble:
            self.trouble = ""
            self._tried = {}

    def pause(self) -> None:
        """Stop reading: the user types."""
        self._quiet_since_s = None
        idle_work = self._engine_thread.inbox.idle_work
        if self._is_at_work and idle_work.is_pending:
            idle_work.drop()

    def update(self, event: DocumentRead) -> None:
        """Take the engine's progress with a document."""
        self.trouble = event.trouble or self.trouble
        self._progress[event.key] = event
        if event.is_interrupted:
            self._tried.pop(event.key, None)

    # ---- reading

    def continue_reading(self, is_quiet: bool) -> None:
        """Hand the next document to the engine if nothing happened for ``QUIET_S`` seconds."""
        engine_thread = self._engine_thread
        model = self._chat_session.model
        if engine_thread.inbox.idle_work.is_pending:
            return
        self._is_at_work = False
        is_local = model is not None and not model.server and not is_starter(model.path)
        if not is_local or self._store is None or not self._quota_bytes:
            return
        is_ready = engine_thread.status.activity is Activity.READY
        if not is_quiet or self._chat_session.is_busy or not is_ready:
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = engine_thread.now_s()
        elif engine_thread.now_s() - self._quiet_since_s >= QUIET_S:
            self._read_next(self._store)

    def _read_next(self, store: Store) -> None:
        if self._valid_for != self._model_and_system:
            self._valid_for = self._model_and_system
            self._progress = {}
            self._tried = {}
        if self.listing is None:
            make_list = partial(_list, store, self.embeddings)
            self.listing = in_background(make_list, "documents list")
        has_failed = self.listing.done() and self.listing.exception() is not None
        if not self.listing.done() or has_failed or store.root is None:
            return

        listing = self.listing.result()
        candidates = [
            document
            for document in listing[:MAX_DOCUMENTS]
            if self.fits(document) and not document.path
        ]
        uncounted = self._first_uncounted(candidates)
        document = uncounted or self._first_unread(candidates)
        if document is None:
            self._embed_next(listing)
            return
        is_read = uncounted is None
        request = partial(_request, store, document, self._chat_session.conversation.system)
        state_path = store.root / document.conversations[0]
        work = DocumentToRead(document.key, request, state_path, is_read)
        if self._engine_thread.read_document(work):
            self._is_at_work = True
            self._tried[document.key] = is_read

    def _first_uncounted(self, documents: Sequence[DocumentEntry]) -> DocumentEntry | None:
        for document in documents:
            if document.key not in self._progress and document.key not in self._tried:
                return document
        return None

    def _first_unread(self, documents: Sequence[DocumentEntry]) -> DocumentEntry | None:
        if not self._may_read() or self.trouble:
            return None
        free_bytes = self._quota_bytes * QUOTA_SHARE
        for document in documents:
            progress = self._progress.get(document.key)
            if progress is not None and progress.n_bytes <= free_bytes:
                free_bytes -= progress.n_bytes
                if not progress.is_whole and not self._tried.get(document.key):
                    return document
        return None

    # ---- vectors of passages

    def _embed_next(self, listing: Sequence[DocumentEntry]) -> None:
        """Make vectors of the passages of the next document that does not fit the context."""
        is_busy = self._embedding is not None and not self._embedding.done()
        if is_busy or not self._may_read():
            return
        for document in listing[:MAX_DOCUMENTS]:
            if document.path and document.key not in self._embedded:
                self._embedding = in_background(partial(self._embed, document), "vectors")
                return

    def _embed(self, document: DocumentEntry) -> bool:
        texts = [
            passage.text
            for read_document in read_documents([document.path]).documents
            for passage in cut(read_document, PASSAGE_CHARS)
        ]
        is_done = self.embeddings.learn(document.key, texts, self._stays_quiet)
        if is_done:
            self._embedded.add(document.key)
        return is_done

    def _stays_quiet(self) -> bool:
        return self._quiet_since_s is not None and not self._chat_session.is_busy


def _list(
    store: Store,
    embeddings: EmbeddingIndex,
    deleted: DocumentEntry | None = None,
    files_in_use: Iterable[Path] = (),
) -> tuple[DocumentEntry, ...]:
    """Return the documents of all conversations, after deleting one."""
    if deleted is not None:
        remove_document(store, deleted, files_in_use)
    documents = list_documents(store)
    embeddings.keep_only([document.key for document in documents])
    return documents


def _request(store: Store, document: DocumentEntry, system: str | None) -> Request:
    """Return the beginning of a new conversation with a document.

    Raises:
        StoreError: the document no longer exists.
    """
    message = PromptMessage(USER, load_document(store, document).in_message.strip())
    if system:
        return Request((PromptMessage(SYSTEM, system), message))
    return Request((message,))
