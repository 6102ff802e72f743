"""Prefill before anything is requested: of drafts, documents, and a conversation for a new model.

Reading ahead does not need the text to stay: the prompt that is sent keeps the longest prefix that
it shares with the cache. A new model reads the whole conversation again, since its vocabulary and
template differ.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.local.context_room import MIN_REPLY_TOKENS
from app.backend.reply import ReplyMeter
from app.backend.status import Activity
from app.session.events import ConversationReread, DocumentRead, DraftCounted
from app.text.figures import count
from engine.errors import Cancelled

if TYPE_CHECKING:
    from app.backend.engine_link import EngineLink
    from app.backend.local.model import LocalModel
    from app.backend.local.picture_reading import PictureReading
    from app.backend.local.saved_states import SavedStates
    from app.backend.protocol import DocumentToRead
    from app.session.request import Request


MIN_TOKENS = 32
"""Fewer tokens are not worth waking the engine for."""
MAX_CHARS = 1 << 16
MAX_COUNT_S = 0.04
"""Rendering and tokenising cannot be cancelled, so texts as long as one that took longer are not
counted."""


class ReadAhead:
    """Counts and prefills for one open model."""

    def __init__(
        self,
        link: EngineLink,
        local: LocalModel,
        states: SavedStates,
        pictures: PictureReading | None = None,
    ) -> None:
        self._link = link
        self._local = local
        self._session = local.session
        self._states = states
        self._pictures = pictures
        self._conversation_tokens = 0
        """Tokens of the conversation itself in the cache."""
        self._slow_chars = MAX_CHARS
        """Length from which drafts are not counted."""
        self._is_first = True

    def set_conversation_tokens(self, n_tokens: int) -> None:
        """Set the number of tokens of the conversation itself in the cache."""
        self._conversation_tokens = n_tokens
        self._slow_chars = MAX_CHARS

    def prepare(self, request: Request, draft: str, is_read: bool, is_settled: bool) -> None:
        """Count the tokens of a draft, the last message of the request, and prefill it.

        Args:
            is_read: whether to prefill it.
            is_settled: whether it consists of documents: any length is worth the time.
        """
        session = self._session
        chat = self._local.chat
        *earlier, last = request.messages
        if not last.text:
            # Remove an earlier draft from the cache.
            if not session.has_lost(session.tokens[: self._conversation_tokens + 1]):
                session.truncate(self._conversation_tokens)
            return
        if self._is_too_slow(last.text, is_settled) or self._is_dropped:
            return

        self._local.set_messages(earlier, draft=last)
        text = last.text
        if last.may_have_pictures:
            if self._pictures is None:  # the model cannot see
                return
            text = self._local.pictures.placed(last)
        started_s = self._link.now_s()
        n_messages = len(chat.messages)
        ids = chat.add_user(text)
        chat.rewind(n_messages)
        # The first count of a model also builds what later ones use, so its time does not matter.
        is_slow = self._link.now_s() - started_s > MAX_COUNT_S and not self._is_first
        self._is_first = False
        if is_slow and not is_settled:
            self._slow_chars = len(last.text)
        self._report(draft, ids)

        is_too_slow = self._is_too_slow(last.text, is_settled)
        if is_read and len(ids) < session.n_ctx and not is_too_slow and not self._is_dropped:
            opening = chat.opening_ids(text)
            if is_settled:
                self._states.restore(opening)
            self._read(draft, opening, ids)

    @property
    def _is_dropped(self) -> bool:
        return self._link.inbox.idle_work.is_dropped

    def _is_too_slow(self, text: str, is_settled: bool) -> bool:
        return len(text) >= self._slow_chars and not is_settled

    def _read(self, draft: str, opening: list[int], ids: list[int]) -> None:
        session = self._session
        # A text that is still being typed is not worth computing all of the context again.
        if session.has_lost(opening):
            return
        n_shared = session.reusable([*opening, -1])
        if len(opening) - n_shared < MIN_TOKENS or self._is_dropped:
            return
        self._conversation_tokens = min(self._conversation_tokens, n_shared)
        self._link.update_status(activity=Activity.READING_AHEAD)
        pictures = self._pictures
        on_progress: Callable[[], object] = bool
        if pictures is not None:
            pictures.begin()
            on_progress = pictures.end_picture
        try:
            result = self._link.inbox.idle_work.prefill(session, opening, on_progress)
            if result is None:
                self._report(draft, ids)
            else:
                read_s = result.seconds
                if pictures is not None:
                    read_s = max(0.0, read_s - pictures.encoded_s)
                self._report(draft, ids, result.fed, read_s)
        finally:
            if pictures is not None:
                pictures.end_picture()
                pictures.save_speed()
            self._link.update_status(activity=Activity.READY)

    def _report(
        self, draft: str, ids: list[int], read_tokens: int = 0, read_s: float = 0.0
    ) -> None:
        n_shared = self._session.reusable(ids)
        n_earlier = min(n_shared, self._conversation_tokens)
        self._link.emit(
            DraftCounted(draft, len(ids) - n_earlier, n_shared - n_earlier, read_tokens, read_s)
        )

    def read_document(self, document: DocumentToRead) -> None:
        """Report how much of a document is saved, and prefill and save the rest."""
        link = self._link
        states = self._states
        *earlier, last = document.request().messages
        with self._local.preserving_messages():
            self._local.set_messages(earlier)
            ids = self._local.chat.opening_ids(last.text)
        n_saved = states.n_saved(ids)
        n_bytes = round(len(ids) * self._session.kv_bytes_per_position)
        progress = DocumentRead(document.key, len(ids), n_saved, n_bytes)
        trouble = ""

        def report(n_saved_now: int) -> None:
            link.emit(replace(progress, saved_tokens=max(n_saved, n_saved_now)))

        fits = len(ids) + MIN_REPLY_TOKENS <= self._session.n_ctx
        if document.is_read and fits and not progress.is_whole and not self._is_dropped:
            link.update_status(activity=Activity.READING_AHEAD)
            try:
                trouble = states.read_apart(ids, document.state, link.inbox.idle_work, report)
                n_saved = states.n_saved(ids)
            finally:
                link.update_status(activity=Activity.READY)
        is_interrupted = self._is_dropped
        link.emit(
            replace(
                progress,
                saved_tokens=n_saved,
                files=states.files_of(ids),
                is_interrupted=is_interrupted,
                trouble=trouble,
            )
        )

    def reread(self, ids: list[int], state: Path | None = None) -> ConversationReread:
        """Prefill the beginning of a conversation's next prompt, until done or stopped.

        The cache or the disk may have a part of it. Nothing is read if no room is left for a reply.

        Args:
            state: as in ``SavedStates.restore``.
        """
        link = self._link
        session = self._session
        # This model may have had the conversation before.
        restored = self._states.restore(ids, state)
        n_ready = session.reusable([*ids, -1])
        reread = ConversationReread(
            0, len(ids), 0.0, restored.trouble, min(restored.tokens, n_ready)
        )
        if len(ids) + MIN_REPLY_TOKENS > session.n_ctx:
            sizes = (
                f"the conversation has {count(len(ids))} tokens, this model's context holds "
                f"{session.n_ctx:,}"
            )
            return replace(reread, trouble=f"{sizes}: the oldest turns go with the next message")
        meter = ReplyMeter(len(ids), link.now_s)
        n_unread = len(ids) - n_ready

        def update_progress(done: int, total: int) -> None:
            if link.inbox.stop_requested.is_set():
                session.cancel()
            self._states.update()
            meter.update_prefill(done)
            link.report_progress(done=done, total=total, context_used=session.length)

        link.report_progress(
            activity=Activity.READING, since_s=meter.started_s, meter=meter, total=n_unread
        )
        with suppress(Cancelled), link.running(session):
            if n_unread and not link.inbox.stop_requested.is_set():
                session.prefill(ids, on_progress=update_progress)
        return replace(
            reread,
            read_tokens=min(session.length, len(ids)),
            read_s=link.now_s() - meter.started_s,
        )
