"""Reading before anything is asked: of the draft in the prompt, and of a conversation that another
model had.

Reading ahead needs no promise that the text stays: the prompt that is sent keeps the longest prefix
it shares with the cache. With another model the whole conversation is read again, since its
vocabulary and template differ.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.local.context_room import MIN_REPLY_TOKENS
from app.backend.reply import ReplyMeter
from app.backend.status import Activity
from app.session.events import ConversationReread, DocumentRead, PromptCounted
from app.text.figures import count
from engine.errors import Cancelled

if TYPE_CHECKING:
    from app.backend.engine_link import EngineLink
    from app.backend.local.model import LocalModel
    from app.backend.local.saved_states import SavedStates
    from app.backend.protocol import DocumentToRead
    from app.session.request import Request


MIN_TOKENS = 32
"""Fewer tokens are not worth waking the engine for."""
MAX_CHARS = 1 << 16
MAX_COUNT_S = 0.04
"""Rendering and tokenising cannot be cancelled: texts as long as one that took longer are left
alone."""


class ReadAhead:
    """Counts and reads for one open model."""

    def __init__(self, link: EngineLink, local: LocalModel, states: SavedStates) -> None:
        self._link = link
        self._local = local
        self._session = local.session
        self._states = states
        self._settled_tokens = 0
        self._slow_chars = MAX_CHARS
        self._is_first = True

    def settle(self, n_tokens: int) -> None:
        """Note that the cache holds ``n_tokens`` tokens of the conversation itself."""
        self._settled_tokens = n_tokens
        self._slow_chars = MAX_CHARS

    def prepare(self, request: Request, draft: str, reads: bool, is_settled: bool) -> None:
        """Count a draft, the last message of the request, and read it ahead if that is wanted."""
        session = self._session
        chat = self._local.chat
        *before, last = request.messages
        text = last.text
        if not text:
            if not session.has_lost(session.tokens[: self._settled_tokens + 1]):
                session.truncate(self._settled_tokens)
            return
        is_slow = len(text) >= self._slow_chars and not is_settled
        if is_slow or self._link.inbox.idle_work.is_dropped:
            return
        started_s = self._link.now_s()
        self._local.set_messages(before)
        n_messages = len(chat.messages)
        ids = chat.add_user(text)
        chat.rewind(n_messages)
        # The first one of a model also builds what every later one uses, and what is asked next
        # would pay for that.
        is_first = self._is_first
        self._is_first = False
        if self._link.now_s() - started_s > MAX_COUNT_S and not is_first and not is_settled:
            self._slow_chars = len(text)
        self._report(draft, ids)
        is_slow = len(text) >= self._slow_chars and not is_settled
        if (
            reads
            and len(ids) < session.n_ctx
            and not (is_slow or self._link.inbox.idle_work.is_dropped)
        ):
            opening = chat.opening_ids(text)
            if is_settled:
                self._states.restore(opening)
            self._read(draft, opening, ids)

    def _read(self, given: str, opening: list[int], ids: list[int]) -> None:
        session = self._session
        # not worth all that would be computed again for what is still being typed
        if session.has_lost(opening):
            return
        shared = session.reusable([*opening, -1])
        if len(opening) - shared < MIN_TOKENS or self._link.inbox.idle_work.is_dropped:
            return
        self._settled_tokens = min(self._settled_tokens, shared)
        self._link.update_status(activity=Activity.READING_AHEAD)
        try:
            done = self._link.inbox.idle_work.prefill(session, opening)
            self._report(given, ids, *((done.fed, done.seconds) if done is not None else ()))
        finally:
            self._link.update_status(activity=Activity.READY)

    def read_document(self, wanted: DocumentToRead) -> None:
        """Say how much is saved of a document, and read the rest if that is wanted."""
        link = self._link
        states = self._states
        *before, last = wanted.request().messages
        with self._local.preserving_messages():
            self._local.set_messages(before)
            ids = self._local.chat.opening_ids(last.text)
        n_saved = states.n_saved(ids)
        told = DocumentRead(
            wanted.key, len(ids), n_saved, round(len(ids) * self._session.kv_bytes_per_position)
        )
        trouble = ""
        fits = len(ids) + MIN_REPLY_TOKENS <= self._session.n_ctx

        def tell(n_saved_now: int) -> None:
            link.emit(replace(told, saved_tokens=max(n_saved, n_saved_now)))

        if wanted.is_read and fits and not told.is_whole and not link.inbox.idle_work.is_dropped:
            link.update_status(activity=Activity.READING_AHEAD)
            try:
                trouble = states.read_apart(ids, wanted.state, link.inbox.idle_work, tell)
                n_saved = states.n_saved(ids)
            finally:
                link.update_status(activity=Activity.READY)
        is_interrupted = link.inbox.idle_work.is_dropped
        files = states.files_of(ids)
        link.emit(
            replace(
                told,
                saved_tokens=n_saved,
                files=files,
                is_interrupted=is_interrupted,
                trouble=trouble,
            )
        )

    def _report(
        self, given: str, ids: list[int], read_tokens: int = 0, read_s: float = 0.0
    ) -> None:
        shared = self._session.reusable(ids)
        kept = min(shared, self._settled_tokens)
        self._link.emit(PromptCounted(given, len(ids) - kept, shared - kept, read_tokens, read_s))

    def reread(self, ids: list[int], state: Path | None = None) -> ConversationReread:
        """Read what a conversation's next prompt will begin with, with progress, until done or
        cancelled, and keep it.

        Args:
            ids: the cache or the disk may hold some of it; without room for a reply after it,
                nothing is read.
            state: as of ``SavedStates.restore``.
        """
        link = self._link
        session = self._session
        # this model may have had the conversation before
        back = self._states.restore(ids, state)
        n_ready = session.reusable([*ids, -1])
        done = ConversationReread(0, len(ids), 0.0, back.trouble, min(back.tokens, n_ready))
        if len(ids) + MIN_REPLY_TOKENS > session.n_ctx:
            sizes = (
                f"the conversation has {count(len(ids))} tokens, this model's context holds "
                f"{session.n_ctx:,}"
            )
            return replace(done, trouble=f"{sizes}: the oldest turns go with the next message")
        meter = ReplyMeter(len(ids), link.now_s)
        unread = len(ids) - n_ready

        def note_progress(done: int, total: int) -> None:
            if link.inbox.stop_requested.is_set():
                session.cancel()
            self._states.update()
            meter.update_prefill(done)
            link.step(done=done, total=total, context_used=session.length)

        link.step(activity=Activity.READING, since_s=meter.started_s, meter=meter, total=unread)
        with suppress(Cancelled), link.running(session):
            if unread and not link.inbox.stop_requested.is_set():
                session.prefill(ids, on_progress=note_progress)
        return replace(
            done, read_tokens=min(session.length, len(ids)), read_s=link.now_s() - meter.started_s
        )
