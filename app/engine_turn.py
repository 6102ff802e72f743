"""One turn in the engine's thread: a prompt and its reply, or the rest of a reply that was stopped.

What happens becomes events; what is measured, the status. Leaves the conversation as it found it unless a reply came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.clean_text import clean_line
from app.conversation import Ending
from app.crash_log import log_without_text
from app.engine_options import ChatOptions
from app.engine_status import Activity
from app.events import GenerationFailed, GenerationFinished, PromptStopped, ReplyReopened
from app.record import record
from app.reply import Reply, ReplyMeter
from app.reply_text import ReplyText
from app.thinking import Thinking
from app.wire import Wire
from engine.cached_tokens import common_prefix
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine import Session
    from engine.chat_prompt import ChatPrompt


@record
class EarlierPart:
    """The beginning of a reply that is continued."""

    ids: Sequence[int]
    text: str
    """What the ids say, without a character that the last of them only began."""
    thinking: Thinking | None


class EngineTurn:
    """One prompt and its reply.

    Args:
        wire: takes events and status.
        session: of the engine.
        chat: ends with the message to answer.
        options: how to ask.
        ids: the prompt.
        earlier: of a reply that is continued; None for a new one.
        on_progress: called after every token and every block of the prompt.
        spelled: control tokens that are part of the text.
    """

    def __init__(
        self,
        wire: Wire,
        session: Session,
        chat: ChatPrompt,
        options: ChatOptions,
        ids: list[int],
        earlier: EarlierPart | None,
        on_progress: Callable[[], object],
        spelled: Collection[int] = (),
    ) -> None:
        self._wire, self._session, self._chat = wire, session, chat
        self._earlier = earlier or EarlierPart((), "", None)
        self._is_reopened, self._on_progress = earlier is None, on_progress
        prompt = [*ids, *self._earlier.ids]
        self._n_unread = len(prompt) - kept_tokens(session, prompt)
        self._reply = Reply(
            session,
            prompt,
            options.sampling(session.model),
            max_tokens=options.max_tokens,
            stop=chat.stops,
            after=self._earlier.ids,
            spelled=spelled,
            on_prompt_progress=self._show_progress,
            clock=wire.clock,
        )
        self._text = ReplyText(wire.emit, self._reply.meter, chat.opening, self._earlier.thinking)

    @property
    def meter(self) -> ReplyMeter:
        """What is measured."""
        return self._reply.meter

    def run(self) -> bool:
        """Answer; True when there is a reply, whole or partial, that the conversation now holds."""
        self._wire.reply = self._reply
        self._wire.written = self
        if self._wire.cancelled.is_set():  # asked for in the moment before the reply could be seen
            self._reply.cancel()
        try:
            return self._run()
        finally:
            self._wire.reply = self._wire.written = None

    def ids(self) -> tuple[int, ...]:
        """Tokens of the whole reply so far; any thread may ask."""
        return (*self._earlier.ids, *self._reply.ids)

    def text(self) -> str:
        """What they say, uncleaned; any thread may ask."""
        return self._earlier.text + self._reply.text

    def _run(self) -> bool:
        self._update(
            activity=Activity.READING,
            since_s=self.meter.started_s,
            meter=self.meter,
            turn_starts=tuple(self._chat.turn_starts()),
            total=self._n_unread,
        )
        try:
            for piece in self._reply:
                self._show(piece)
                self._update(activity=Activity.WRITING, context_used=self._session.length)
                self._on_progress()
        except BaseException as error:
            if not self._reply.ids:
                raise
            self._keep_reply()
            self._wire.emit(GenerationFailed(reason_of(error), self.meter.figures(), self.ids(), self.text()))
            return True
        ending = self.meter.ending
        if ending is Ending.STOPPED and not self._reply.ids:
            self._wire.emit(PromptStopped())
            return False
        self._keep_reply()
        self._wire.emit(GenerationFinished(ending, self.meter.figures(), self.ids(), self.text()))
        return True

    def _show_progress(self, done: int, total: int) -> None:
        self._update(done=done, total=total, context_used=self._session.length)
        self._on_progress()

    def _update(self, **changes: Any) -> None:
        self._wire.threads.grant()  # whoever calls stands between two steps
        self._wire.status = replace(self._wire.status, **changes)

    def _show(self, text: str) -> None:
        if not self._is_reopened:
            # Only now: a continuation that is stopped before its first token leaves the reply as it was.
            self._is_reopened = True
            self._wire.emit(ReplyReopened())
            self._text.push(self._earlier.text)
        self._text.push(text)

    def _keep_reply(self) -> None:
        self._show("")
        self._text.finish()
        self._chat.add_reply(list(self.ids()), self.text())


def kept_tokens(session: Session, ids: Sequence[int]) -> int:
    """How many tokens of a prompt need not be read, because the cache holds them."""
    return min(common_prefix(session.tokens, ids), len(ids) - 1)  # the last token is always computed


def reason_of(error: BaseException) -> str:
    """Say in one clean line what went wrong; a bug goes to the log and is only named."""
    if isinstance(error, EngineError):
        return clean_line(str(error), 300)
    if isinstance(error, MemoryError):
        return "not enough memory for this turn; /new or a smaller context needs less"
    if isinstance(error, OSError) and error.strerror:
        return clean_line(f"{error.filename or 'model file'}: {error.strerror}", 300)
    log = log_without_text(error)
    return f"internal error in the engine: {type(error).__name__} ({f'details in {log}' if log else 'not logged'})"
