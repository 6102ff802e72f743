"""Commands to the engine's thread, one record each, and who obeys them; events (``app.chat.events``) answer them."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from app.chat.reply import ReplyMeter
from app.conversations.conversation import PastTurn
from app.conversations.thinking import Thinking
from app.program.remote_model import ModelPlace
from app.text.record import record
from engine.prompt.tools.calls import CallResult, ToolCall

THREADS_AND_WEIGHTS = ("counts", "pinning", "weights")
KV_TYPES = ("kv",)
"""Parts of tuning, as ``engine.tuning.report`` names them."""


class Command:
    """What the engine's thread is asked to do."""


@record
class OpenConversation(Command):
    """Go on with another conversation, or a new one; what it begins with like the present one is not read again."""

    system: str | None
    turns: tuple[PastTurn, ...] = ()
    state: Path | None = None
    """Where the state of the cache may be found, for whichever model reads them."""
    n_dropped: int = 0
    """Earlier turns that the context no longer contains."""


@record
class Load(Command):
    """Open a model in place of the present one and start a conversation, or go on with one that another model had."""

    path: ModelPlace
    said: OpenConversation
    """The conversation so far; the present model reads it again if it is opened in place of the new one."""
    keeps: bool = True
    """Whether the new one goes on with it."""
    rereads: bool = True
    """Whether the model reads it before anything new is asked; else with what is asked next."""


@record
class AnsweredCalls:
    """Calls that the last reply ends with, where in its text they begin, and what came of them."""

    calls: tuple[ToolCall, ...]
    calls_at: int
    results: tuple[CallResult, ...]


@record
class Ask(Command):
    """Answer the user's next message."""

    text: str
    asked_s: float | None = None
    """When the user sent it, on the bridge's clock, if it had to wait."""
    keep_turns: int | None = None
    """Number of earlier turns to keep; None keeps all."""
    answered: AnsweredCalls | None = None
    """Calls with their results, which stand in place of the text."""


@record
class CallTools(Command):
    """Run the calls that the last reply ends with; those that are not allowed are told to the model as refused."""

    calls: tuple[ToolCall, ...]
    allowed: frozenset[str]
    """Ids of calls that the user agreed to."""


@record
class Read(Command):
    """Read the user's next message as far as it is known, and keep the state; the message itself comes later."""

    text: str


@record
class Complete(Command):
    """Continue a plain text: no template is applied, and nothing of it is remembered."""

    text: str


@record
class Regenerate(Command):
    """Answer the last message again in place of the reply it has."""


@record
class MeasureBandwidth(Command):
    """Find out how fast memory can be read, if nothing else is to be done."""


@record
class Examine(Command):
    """Measure the machine for the doctor; the loaded model stays as it is."""

    answer: Future[Any]
    """Gets an ``app.doctor.examine.Examination``, or the exception that prevented it."""


@record
class Prepare(Command):
    """Count the tokens of the draft in the prompt, and read them ahead while nothing else is asked."""

    text: str
    read_ahead: bool
    is_settled: bool = False
    """Whether it is of documents, which stay: any length is worth the time, and saved states are looked through."""


@record
class WriteTitle(Command):
    """Write a title for the conversation in the context while nothing else is asked."""

    conversation_id: str


@record
class Tune(Command):
    """Search for the best thread counts and memory modes; the time limit follows from the parts."""

    parts: tuple[str, ...] = THREADS_AND_WEIGHTS
    """Of ``engine.tuning.sweep.BUDGETS_S``; earlier findings on other parts stay."""


@record
class GrantThreads(Command):
    """Wake the thread, so that it grants the wish for other threads."""


@record
class Continue(Command):
    """Go on with the last reply from the tokens it has."""

    thinking: Thinking | None = None
    is_loop: bool = False
    """Whether it was ended since it repeated itself: what follows is kept from repetition."""


@record
class ContinueEdited(Command):
    """Go on with a reply from what the user made of its text, and forget all turns after it."""

    text: str
    """In place of its answer, or of its thinking where there is no answer yet; exactly as it is to be."""
    n_turn: int
    """Whose reply it is, from 0 on."""
    thinking: Thinking | None = None
    """The thinking before its answer."""


@record
class Weigh(Command):
    """Compute what a turn would cost; changes nothing."""

    turn: Ask | ContinueEdited


@record
class Think(Command):
    """Have the model think more or less from the next message on, and remember it for this model."""

    mode: str
    """As ``engine.prompt.thinking_mode.ThinkingMode`` writes it."""


@record
class Close(Command):
    """End the thread."""


Turn = Ask | Complete | Regenerate | Continue | ContinueEdited
"""Those that a reply answers."""
STOPPABLE = (Ask, CallTools, Complete, Read, Regenerate, Continue, ContinueEdited, Tune, Load)
"""A stop from before one of these does not concern it."""
IDLE_WORK = (Prepare, WriteTitle)
"""Done only while nothing is asked, one at a time, and dropped by any other command."""
UNASKED = (*IDLE_WORK, Weigh, MeasureBandwidth)
"""No one waits for these: what goes wrong with them is not reported."""


class Worker(Protocol):
    """Carries out commands with the models of one kind; all of it in the engine's thread."""

    @property
    def is_open(self) -> bool:
        """Whether a model of this kind is open."""

    def obey(self, command: Command) -> None:
        """Carry a command out, and emit what comes of it."""

    def look_at(self, path: ModelPlace) -> None:
        """Look at a model while another one is open. Raises Exception: it cannot be opened."""

    def settle(self, meter: ReplyMeter | None = None) -> None:
        """Say that the thread is free; ``meter`` has the last reply's figures."""

    def unload(self) -> None:
        """Close the model, if one is open."""
