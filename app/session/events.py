"""Events of a conversation with an engine, as plain records: models opened, text written, turns
ended.

Text in them is clean already (``clean_text``) unless a field says otherwise. No screen is known
here.
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
from engine.prompt.thinking_mode import AUTO
from engine.prompt.tools.calls import CallResult, ToolCall


class Event:
    """What the engine's thread reports; ``EngineThread.drain`` returns them in order."""


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
    """As the file has it, uncleaned; for programs."""
    thinking: str = AUTO
    server: str = ""
    """Host and port of who computes it; "" where that is this program, which knows its sizes."""
    tokens_ratio: float = 1.0
    """Tokens that documents have for one that is estimated: more than 1 where the vocabulary is
    small."""
    context_may_grow: bool = False
    """Whether the model was trained for a longer context than it has."""

    @property
    def title(self) -> str:
        """Its name in files and lists."""
        return f"{self.name} {self.quantization}".strip()


@record
class ConversationReread(Event):
    """A newly opened model has read the conversation that another one had, or as much as it
    could."""

    read_tokens: int
    """Those that are in the cache now."""
    total_tokens: int
    read_s: float
    trouble: str = ""
    """Why not all of it was read; "" if it was, or if the user stopped it."""
    restored_tokens: int = 0
    """Those that a saved state brought back: this model had read them before."""


@record
class DocumentRead(Event):
    """How much of a document's beginning of a conversation is saved for the open model; more may
    come."""

    key: str
    """The document's."""
    tokens: int
    saved_tokens: int
    n_bytes: int
    """What all of it takes on the disk, about."""
    files: tuple[Path, ...] = ()
    """Those that hold what is saved of it, and nothing else."""
    is_interrupted: bool = False
    """Whether it gave way to something that was asked."""
    trouble: str = ""
    """Why the rest is not read; "" for no reason to stop."""

    @property
    def is_whole(self) -> bool:
        """Whether a question about it finds all of it read."""
        return self.saved_tokens >= self.tokens


@record
class ConversationResumed(Event):
    """The engine goes on with a saved conversation."""

    total_tokens: int
    ready_tokens: int = 0
    """Those that need not be read."""
    restored_tokens: int = 0
    """Those of them that a saved state brought back, in ``restored_s`` seconds."""
    restored_s: float = 0.0
    read_s: float | None = None
    """How long reading these would have taken at the usual rate; None where none is known."""
    trouble: str = ""
    """Why a saved state was not used; "" for none."""


@record
class ModelFailed(Event):
    """No model could be opened, and none is loaded."""

    reason: str
    error: BaseException | None = None
    """The exception, for a program that ends with it."""


@record
class ModelSwitchFailed(Event):
    """Another model could not be opened: the one from before stays, with its conversation."""

    reason: str
    is_open: bool
    """Whether it was never closed; otherwise a ``ModelLoaded`` follows, or a ``ModelFailed``."""


@record
class TextGenerated(Event):
    """More of the running reply's answer."""

    text: str


@record
class ThoughtGenerated(Event):
    """More of the thinking before the answer."""

    text: str


@record
class PieceGenerated(Event):
    """More of the running reply as the model wrote it: uncleaned, with its thinking and tags.

    Only where asked for.
    """

    text: str


@record
class ThinkingFinished(Event):
    """The running reply's thinking is over, because the answer begins or because the reply ends."""

    tokens: int
    duration_s: float
    is_closed: bool


@record
class ReplyReopened(Event):
    """A reply goes on that was stopped: its text follows from the beginning, then what is new."""


@record
class PromptWeighed(Event):
    """Cost of sending a text in place of an earlier message and all after it."""

    text: str
    kept_tokens: int
    """Cached tokens that stay."""
    dropped_tokens: int
    """Cached tokens that go."""
    read_tokens: int
    read_s: float | None = None
    """How long that takes at the rate measured last; None where none was measured."""


@record
class GenerationFinished(Event):
    """The running reply is complete, or was stopped, or met a limit."""

    ending: Ending
    figures: ReplyFigures
    ids: tuple[int, ...] = ()
    raw: str = ""
    """Their text, not cleaned."""
    calls: tuple[ToolCall, ...] = ()
    calls_at: int = 0
    """Where in ``raw`` they begin."""
    server_fields: ServerFields | None = None
    """Fields that the server of the reply needs back; None if it needs none."""


@record
class GenerationFailed(Event):
    """The engine gave up on the turn."""

    reason: str
    partial_reply: GenerationFinished | None = None
    """The reply as far as it came; None where it never began, and the turn does not count."""
    error: BaseException | None = None
    """The exception, for a program that ends with it."""


@record
class AnswersBegun(Event):
    """Several replies to one message will be told, each by ``AnswerEvent``, until
    ``AnswersFinished``."""

    n: int
    """1 where there is memory for no more: then the reply is told as any other."""
    trouble: str = ""
    """Why they are fewer than were asked for."""


@record
class AnswerEvent(Event):
    """What would be told of one of several replies if it were the only one."""

    index: int
    """Index of the reply, from 0."""
    event: Event


@record
class AnswersFinished(Event):
    """All of them have ended; those that were begun have told so."""


@record
class PromptStopped(Event):
    """The user stopped the turn before the first token; the question is unanswered."""


@record
class PromptCounted(Event):
    """The engine has counted the tokens of the draft, and may have read a part of it ahead."""

    text: str
    tokens: int
    """Tokens that sending it would add to the conversation."""
    ready_tokens: int
    """Those of them that are in the cache already."""
    read_tokens: int = 0
    read_s: float = 0.0


@record
class PromptRefused(Event):
    """The conversation with this message would not fit the context; nothing was computed."""

    needed_tokens: int
    n_ctx: int


@record
class MessagesJoined(Event):
    """Of ``HeadlessChat``: the message goes together with the one before, which the end of the program left
    unanswered."""


@record
class PendingMessageLeftOut(Event):
    """Of ``HeadlessChat``: both together do not fit the context: the message is asked alone, and the one
    before is dropped."""


@record
class TurnsDropped(Event):
    """The context was full: the oldest turns were dropped from it."""

    n_turns: int
    n_tokens: int
    """Tokens that were theirs, about."""
    read_tokens: int
    """Of what is left, tokens that are read again now."""
    read_s: float | None
    """How long that takes at the rate measured last; None where none was measured."""


@record
class ThreadsChanged(Event):
    """The engine uses other threads from its next step on."""

    before: ThreadsInUse
    in_use: ThreadsInUse
    trouble: str = ""
    """Why they are not remembered; "" if they are, or should not be."""


@record
class AdaptersChanged(Event):
    """Other adapters change the model from now on."""

    adapters: tuple[str, ...]
    trouble: str = ""
    """Why they do not, and those from before stay; "" if they do."""


@record
class TitleWritten(Event):
    """The model has written a title for a conversation; clean, one short line."""

    conversation_id: str
    title: str


@record
class MemoryMeasured(Event):
    """Memory was measured, and the best of quiet times remembered."""

    read_gbps: float
    is_quiet: bool = True
    """Whether other programs left the machine alone meanwhile: else memory can do more."""


@record
class TuningDoubted(Event):
    """The remembered threads may no longer be the best; nothing was changed."""

    reason: str
    """As "threads were tuned on mains, now on battery"."""


@record
class TuningEnded(Event):
    """No thread counts are measured any more; ``EngineThread.tuning`` holds what was found."""

    trouble: str = ""
    """Why it broke off; "" if it did not."""


@record
class ToolsNotice(Event):
    """A line about tools for the user: why there are none, what is no call, or what a server did
    wrong."""

    line: str
    is_fault: bool = False
    """Of a server."""


@record
class ToolsAnswered(Event):
    """All calls of the last reply have a result."""

    results: tuple[CallResult, ...]


def reason_of(error: BaseException) -> str:
    """Say in one clean line what went wrong; a bug goes to the log and is only named."""
    if isinstance(error, (EngineError, Refusal)):
        return clean_line(str(error), 300)
    if isinstance(error, MemoryError):
        return "not enough memory for this turn; /new or a smaller context needs less"
    if isinstance(error, OSError) and error.strerror:
        return clean_line(f"{error.filename or 'model file'}: {error.strerror}", 300)
    return bug_line(error, " in the engine")
