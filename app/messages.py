"""Messages that cross widgets, or come from the engine's thread; each names what has happened.

Text in them is clean already (``clean_text``) unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.events import Key, Paste
from textual.message import Message

from app.conversation import Ending, ReplyFigures
from app.draft import Draft
from app.threads_in_use import ThreadsInUse

if TYPE_CHECKING:
    from app.widgets.message_view import MessageView


@dataclass(eq=False, repr=False)
class PromptSubmitted(Message):
    """The user sent what stood in the prompt."""

    text: str
    draft: Draft
    """The same with its large pastes folded."""


@dataclass(eq=False, repr=False)
class PasteRefused(Message):
    """The user pasted more than is taken."""


@dataclass(eq=False, repr=False)
class PasteUnended(Message):
    """The terminal did not say where a paste ends; what came of it is handed over."""


@dataclass(eq=False, repr=False)
class TakeBackRequested(Message):
    """The user wants the message back that waits for its turn."""


@dataclass(eq=False, repr=False)
class TranscriptScrolled(Message):
    """The user asked from the prompt to move through the transcript, by pages; negative is up."""

    pages: int


@dataclass(eq=False, repr=False)
class MessageKeyPressed(Message):
    """The user pressed a key on a focused message."""

    view: MessageView
    name: str
    """Of the action, as in ``ACTIONS``."""


@dataclass(eq=False, repr=False)
class MessageLeft(Message):
    """The user went from a focused message back to the prompt."""

    event: Key | Paste | None = None
    """What they typed or pasted to do so, which is for the prompt."""


@dataclass(eq=False, repr=False)
class LinkChosen(Message):
    """The user chose a link in a reply; nothing opens by itself."""

    address: str


@dataclass(eq=False, repr=False)
class ModelLoaded(Message):
    """A model and its session are ready."""

    name: str
    quantization: str
    path: str
    n_ctx: int
    kv_bytes: int
    weights_bytes: int
    notices: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class ConversationReread(Message):
    """A newly opened model has read the conversation that another one had, or as much as it could."""

    read_tokens: int
    """Those that are in the cache now."""
    total_tokens: int
    read_s: float
    trouble: str = ""
    """Why not all of it was read; "" if it was, or if the user stopped it."""
    restored_tokens: int = 0
    """Those that a saved state brought back: this model had read them before."""


@dataclass(eq=False, repr=False)
class ConversationTakenUp(Message):
    """The engine goes on with a saved conversation.

    Attributes:
        total_tokens: of the conversation.
        ready_tokens: those that need not be read.
        restored_tokens: those of them that a saved state brought back, in ``restored_s`` seconds.
        read_s: how long reading these would have taken at the usual rate; None where none is known.
        trouble: why a saved state was not used; "" for none.
    """

    total_tokens: int
    ready_tokens: int = 0
    restored_tokens: int = 0
    restored_s: float = 0.0
    read_s: float | None = None
    trouble: str = ""


@dataclass(eq=False, repr=False)
class ModelFailed(Message):
    """No model could be opened, and there is none now."""

    reason: str


@dataclass(eq=False, repr=False)
class ModelKept(Message):
    """Another model could not be opened: the one from before stays, with its conversation."""

    reason: str
    is_open: bool
    """Whether it was never closed; otherwise a ``ModelLoaded`` follows, or a ``ModelFailed``."""


@dataclass(eq=False, repr=False)
class TextGenerated(Message):
    """More of the running reply's answer."""

    text: str


@dataclass(eq=False, repr=False)
class ThoughtGenerated(Message):
    """More of what the model thinks before the answer."""

    text: str


@dataclass(eq=False, repr=False)
class ThinkingFinished(Message):
    """The running reply's thinking is over, because the answer begins or because the reply ends."""

    tokens: int
    duration_s: float
    is_closed: bool


@dataclass(eq=False, repr=False)
class ReplyReopened(Message):
    """A reply goes on that was stopped: its text follows from the beginning, then what is new."""


@dataclass(eq=False, repr=False)
class PromptWeighed(Message):
    """What it would cost to send a text in place of an earlier message and all after it."""

    text: str
    kept_tokens: int
    """Cached tokens that stay."""
    dropped_tokens: int
    """Cached tokens that go."""
    read_tokens: int
    """Tokens that would be computed."""
    read_s: float | None
    """How long that takes at the rate measured last; None where none was measured."""


@dataclass(eq=False, repr=False)
class GenerationFinished(Message):
    """The running reply is complete, or was stopped, or met a limit."""

    ending: Ending
    figures: ReplyFigures
    ids: tuple[int, ...] = ()
    """Its tokens, all of them."""
    raw: str = ""
    """What they say, not cleaned."""


@dataclass(eq=False, repr=False)
class GenerationFailed(Message):
    """The engine gave up on the turn. With no figures it never began to answer, and the turn does not count."""

    reason: str
    figures: ReplyFigures | None = None
    ids: tuple[int, ...] = ()
    raw: str = ""
    """Both as of ``GenerationFinished``."""


@dataclass(eq=False, repr=False)
class PromptStopped(Message):
    """The user stopped the turn before the first token; the question is unanswered."""


@dataclass(eq=False, repr=False)
class PromptCounted(Message):
    """The engine has counted what stands in the prompt, and may have read a part of it ahead."""

    text: str
    """As it was sent to be counted."""
    tokens: int
    """Tokens that sending it would add to the conversation."""
    ready_tokens: int
    """Those of them that are in the cache already."""
    read_tokens: int = 0
    """Tokens read ahead just now."""
    read_s: float = 0.0
    """Seconds that reading them took."""


@dataclass(eq=False, repr=False)
class PromptRefused(Message):
    """The conversation with this message would not fit the context; nothing was computed."""

    needed_tokens: int
    n_ctx: int


@dataclass(eq=False, repr=False)
class TurnsDropped(Message):
    """The context was full: the oldest turns are no part of it any more.

    Attributes:
        n_turns: how many went just now.
        n_tokens: that were theirs, about.
        read_tokens: of what is left, those that are read again now.
        read_s: how long that takes at the rate measured last; None where none was measured.
    """

    n_turns: int
    n_tokens: int
    read_tokens: int
    read_s: float | None


@dataclass(eq=False, repr=False)
class ThreadsChanged(Message):
    """The engine uses other threads from its next step on."""

    before: ThreadsInUse
    in_use: ThreadsInUse
    trouble: str = ""
    """Why they are not remembered; "" if they are, or should not be."""


@dataclass(eq=False, repr=False)
class TuningDoubted(Message):
    """What was tuned may not hold any more; nothing was changed."""

    reason: str
    """As "threads were tuned on mains, now on battery"."""


@dataclass(eq=False, repr=False)
class TuningEnded(Message):
    """No thread counts are measured any more; ``EngineBridge.tuning`` holds what was found."""

    trouble: str = ""
    """Why it broke off; "" if it did not."""


EngineMessage = (
    ModelLoaded
    | ModelFailed
    | ModelKept
    | ConversationReread
    | ConversationTakenUp
    | TextGenerated
    | ThoughtGenerated
    | ThinkingFinished
    | ReplyReopened
    | GenerationFinished
    | GenerationFailed
    | PromptCounted
    | PromptStopped
    | PromptRefused
    | PromptWeighed
    | TurnsDropped
    | ThreadsChanged
    | TuningDoubted
    | TuningEnded
)
"""What the engine's thread reports; ``EngineBridge.drain`` returns these in order."""
