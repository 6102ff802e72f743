"""A conversation goes on with another model: the engine's side of reading it again.

Another vocabulary, another template: no token of the old model means anything to the new one, so the whole text is
read. It is read before anything new is asked, so that what is asked next is answered as fast as usual.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.chat.events import ConversationReread
from app.chat.reply import ReplyMeter
from app.chat.status import Activity
from app.program import exit_codes
from app.program.refusals import exit_code_of
from app.text.figures import count

if TYPE_CHECKING:
    from app.chat.wire import Wire
    from engine import Session


class Rereading:
    """Reads what a conversation's next prompt will begin with, with progress, until done or cancelled.

    Args:
        wire: takes the status; its ``rereading`` is what a cancel reaches.
        session: of the new model, with no more than what a saved state brought back.
    """

    def __init__(self, wire: Wire, session: Session) -> None:
        self._wire, self._session = wire, session

    def run(self, ids: list[int], least_free_tokens: int) -> ConversationReread:
        """Read.

        Args:
            ids: what the next prompt will begin with; the cache may hold some of it.
            least_free_tokens: room for a reply that must be left; without it nothing is read.
        """
        n_ready = self._session.reusable([*ids, -1])
        if len(ids) + least_free_tokens > self._session.n_ctx:
            sizes = f"the conversation has {count(len(ids))} tokens, this model's context holds {self._session.n_ctx:,}"
            return ConversationReread(0, len(ids), 0.0, f"{sizes}: the oldest turns go with the next message")
        self._meter, unread = ReplyMeter(len(ids), self._wire.clock), len(ids) - n_ready
        self._update(activity=Activity.READING, since_s=self._meter.started_s, meter=self._meter, total=unread)
        self._wire.rereading = self._session
        try:
            if unread and not self._wire.cancelled.is_set():
                self._session.prefill(ids, on_progress=self._note_progress)
        except Exception as error:
            if exit_code_of(error) != exit_codes.INTERRUPTED:
                raise
        finally:
            self._wire.rereading = None
        read_s = self._wire.clock() - self._meter.started_s
        return ConversationReread(min(self._session.length, len(ids)), len(ids), read_s)

    def _note_progress(self, done: int, total: int) -> None:
        if self._wire.cancelled.is_set():
            self._session.cancel()
        self._meter.read_tokens = done
        self._meter.prefill_s = self._wire.clock() - self._meter.started_s
        self._update(done=done, total=total, context_used=self._session.length)

    def _update(self, **changes: Any) -> None:
        self._wire.threads.grant()  # whoever calls stands between two steps
        self._wire.status = replace(self._wire.status, **changes)
