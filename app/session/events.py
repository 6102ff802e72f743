"""Events of the engine thread: models opened, text written, turns ended.

Text in events is clean (``clean_text``) unless a field says otherwise. Events know no screen.
"""

from __future__ import annotations

from pathlib import Path

from app.conversations.conversation import Ending, ReplyFigures
from app.conversations.server_fields import ServerFields
from app.machine.tuning.threads_in_use import ThreadsInUse
from app.program.refusals import Refusal, bug_line
from app.text.clean_text import clean_line
from app.text.record import record
from engine.errors import EngineError
from engine.prompt.thinking import AUTO
from engine.prompt.tools.calls import CallResult, ToolCall


class Event:
    """Report of the engine thread; ``EngineThread.drain`` returns reports in order."""


# ---- models


@record
class ModelLoaded(Event):
    """A model and its session are ready."""

    name: str
    quantization: str
    path: str
    n_ctx: int
    kv_bytes: int
    weights_bytes: int
    notices: tuple[str, ...] = ()
    full_name: str = ""
    """Name as the file has it, not cleaned; for programs."""
    thinking: str = AUTO
    server: str = ""
    """Host and port of the server that runs the model; empty if it runs here."""
    tokens_ratio: float = 1.0
    """Actual tokens per estimated token of a document; above 1 for small vocabularies."""
    context_may_grow: bool = False
    """Whether the model was trained for a longer context than it has."""
    sees_pictures: bool = False
    """Whether the model reads pictures."""

    @property
    def title(self) -> str:
        """Name and quantization of the model, as in files and lists."""
        return f"{self.name} {self.quantization}".strip()


@record
class ModelFailed(Event):
    """A model could not be opened, and no model is open."""

    reason: str
    error: BaseException | None = None
    """Exception for a program that ends with it."""


@record
class ModelSwitchFailed(Event):
    """A new model could not be opened; the previous one stays, with its conversation."""

    reason: str
    is_open: bool
    """Whether the previous model is still open; otherwise ``ModelLoaded`` or ``ModelFailed``
    follows."""


@record
class ThreadsChanged(Event):
    """The engine uses other threads from its next step on."""

    before: ThreadsInUse
    in_use: ThreadsInUse
    trouble: str = ""
    """Reason why they are not remembered; empty if they are, or should not be."""


@record
class AdaptersChanged(Event):
    """The model has other adapters."""

    adapters: tuple[str, ...]
    trouble: str = ""
    """Reason why the model still has the earlier adapters; empty if it has the new ones."""


@record
class MemoryMeasured(Event):
    """The speed of memory was measured, and the best value of quiet times saved."""

    read_gbps: float
    is_quiet: bool = True
    """Whether other programs were idle; otherwise memory may be faster."""


@record
class TuningDoubted(Event):
    """The saved threads may no longer be the best; nothing was changed."""

    reason: str
    """Reason such as "threads were tuned on mains, now on battery"."""


@record
class TuningEnded(Event):
    """The search for the best settings has ended; ``EngineState.tuning`` has its report."""

    trouble: str = ""
    """Reason why the search broke off; empty if it did not."""


# ---- conversations


@record
class ConversationReread(Event):
    """A newly opened model has read the conversation, or a part of it."""

    read_tokens: int
    """Tokens of the conversation that are in the cache now."""
    total_tokens: int
    read_s: float
    trouble: str = ""
    """Reason why a part was not read; empty if all was read or the user stopped it."""
    restored_tokens: int = 0
    """Tokens that came from a saved state of this model."""


@record
class ConversationResumed(Event):
    """The engine continues a saved conversation."""

    total_tokens: int
    ready_tokens: int = 0
    """Tokens that are in the cache."""
    restored_tokens: int = 0
    """Tokens that came from a saved state."""
    restored_s: float = 0.0
    read_s: float | None = None
    """Seconds that reading the restored tokens would have taken; None if unknown."""
    trouble: str = ""
    """Reason why a saved state was not used; empty if there is none."""


@record
class TurnsDropped(Event):
    """The context was full, so the oldest turns were dropped from it."""

    n_turns: int
    n_tokens: int
    """Approximate number of tokens of these turns."""
    read_tokens: int
    """Tokens of the remaining turns that are read again."""
    read_s: float | None
    """Seconds that this takes at the last measured speed; None if none was measured."""


@record
class ConversationCompacted(Event):
    """Event of ``ChatSession``: a summary has taken the place of the oldest messages."""

    n_messages: int
    """Number of messages that are summarized now."""
    n_tokens: int
    """Estimated number of tokens that the summary replaces."""
    n_summary_tokens: int
    """Estimated number of tokens of the summary."""


@record
class CompactionEnded(Event):
    """Event of ``ChatSession``: no summary was written, and nothing has changed."""

    trouble: str = ""
    """Reason; empty if the user stopped it."""


@record
class TitleWritten(Event):
    """The model has written a title for a conversation: clean, one short line."""

    conversation_id: str
    title: str


@record
class DocumentRead(Event):
    """A part of a document is saved for the open model; more may follow."""

    key: str
    """Key of the document."""
    tokens: int
    saved_tokens: int
    n_bytes: int
    """Approximate size of the whole state on disk."""
    files: tuple[Path, ...] = ()
    """Files that contain nothing but the state of this document."""
    is_interrupted: bool = False
    """Whether a request interrupted the reading."""
    trouble: str = ""
    """Reason why the rest is not read; empty if there is none."""

    @property
    def is_whole(self) -> bool:
        """Whether all of the document is saved."""
        return self.saved_tokens >= self.tokens


# ---- a reply


@record
class TextGenerated(Event):
    """Next piece of the running reply's answer."""

    text: str


@record
class ThoughtGenerated(Event):
    """Next piece of the thinking before the answer."""

    text: str


@record
class PieceGenerated(Event):
    """Next piece of the reply as the model wrote it: not cleaned, with thinking and tags.

    Emitted only if the options ask for it.
    """

    text: str


@record
class ThinkingFinished(Event):
    """The thinking of the running reply is over."""

    tokens: int
    duration_s: float
    is_closed: bool


@record
class ReplyReopened(Event):
    """A stopped reply continues: its text follows from the beginning, then the new text."""


@record
class GenerationFinished(Event):
    """The running reply is complete, was stopped, or reached a limit."""

    ending: Ending
    figures: ReplyFigures
    ids: tuple[int, ...] = ()
    raw: str = ""
    """Text of ``ids``, not cleaned."""
    calls: tuple[ToolCall, ...] = ()
    calls_at: int = 0
    """Index in ``raw`` where the tool calls begin."""
    server_fields: ServerFields | None = None
    """Fields that the server of the reply needs back; None if it needs none."""
    could_call: bool = False
    """Whether the reply could call tools."""


@record
class GenerationFailed(Event):
    """The engine gave up on the turn."""

    reason: str
    partial_reply: GenerationFinished | None = None
    """The reply so far; None if it had not begun, so that the turn does not count."""
    error: BaseException | None = None
    """Exception for a program that ends with it."""


@record
class AnswersBegun(Event):
    """Several replies to one message are being written.

    Each is reported by ``AnswerEvent``, until ``AnswersFinished``.
    """

    n: int
    """Number of replies; 1 if memory has no room for more, and the reply has ordinary events."""
    trouble: str = ""
    """Reason why there are fewer than requested; empty if there are not."""
    other_model: str = ""
    """Name of another model that writes the last one next to the present reply; empty if there is
    none."""


@record
class AnswerEvent(Event):
    """Event of one of several replies."""

    index: int
    """Index of the reply, from 0."""
    event: Event


@record
class AnswersFinished(Event):
    """All of several replies have ended."""


# ---- a prompt


@record
class PromptStopped(Event):
    """The user stopped the turn before the first token; the question has no reply."""


@record
class PromptRefused(Event):
    """The conversation with this message does not fit the context; nothing was computed."""

    needed_tokens: int
    n_ctx: int


@record
class DraftCounted(Event):
    """The tokens of a draft are counted, and some of them may have been read ahead."""

    text: str
    tokens: int
    """Tokens that the draft would add to the conversation."""
    ready_tokens: int
    """Tokens of the draft that are in the cache."""
    read_tokens: int = 0
    read_s: float = 0.0


@record
class EditCostMeasured(Event):
    """Cost of replacing an earlier message and everything after it."""

    text: str
    kept_tokens: int
    """Cached tokens that stay."""
    dropped_tokens: int
    """Cached tokens that are dropped."""
    read_tokens: int
    read_s: float | None = None
    """Seconds that reading takes at the last measured speed; None if none was measured."""


@record
class MessagesJoined(Event):
    """Event of ``HeadlessChat``: the message was sent together with the unanswered one before."""


@record
class PendingMessageLeftOut(Event):
    """Event of ``HeadlessChat``: both messages do not fit, so the unanswered one is left out."""


# ---- tools


@record
class EmptyReplyRepeated(Event):
    """A model that could call tools has written nothing; it is asked once more without them."""


@record
class ToolsNotice(Event):
    """Line about tools for the user: why there are none, or what a model or server did wrong."""

    line: str
    is_fault: bool = False
    """Whether a server is at fault."""


@record
class ToolsAnswered(Event):
    """All tool calls of the last reply have a result."""

    results: tuple[CallResult, ...]


def reason_of(error: BaseException) -> str:
    """Return the reason of an error as one clean line; a bug goes to the log and is only named."""
    if isinstance(error, (EngineError, Refusal)):
        return clean_line(str(error), 300)
    if isinstance(error, MemoryError):
        return "not enough memory for this turn; /new or a smaller context needs less"
    if isinstance(error, OSError) and error.strerror:
        return clean_line(f"{error.filename or 'model file'}: {error.strerror}", 300)
    return bug_line(error, " in the engine")
