"""The way between the screen and the engine: one long-lived thread, a bounded queue in, a deque and a record out.

The screen's side of this file never calls the engine, except ``Session.cancel``, which any thread may call. The
thread's side is ``app.engine_worker``; it is imported there, after the first frame, because it brings in the engine.

The thread is a plain daemon thread and not a Textual worker: those run in asyncio's executor, which is joined at exit,
so that a compilation in progress would hold up quitting for as long as it lasts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import groupby
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Protocol

from app.conversation import PastTurn
from app.engine_status import Activity, EngineStatus
from app.idle_work import IdleWork
from app.messages import EngineMessage, TextGenerated, ThoughtGenerated
from app.performance.history import ReplyHistory
from app.performance.records import EngineFigures
from app.record import record
from app.reply import Reply
from app.settings import AUTO
from app.state import Measured, TunedChoice
from app.thinking import Thinking
from app.threads_in_use import ThreadsInUse, ThreadWishes
from app.tuned import Recalled
from app.tuning_conditions import Conditions, ConditionsWatch

if TYPE_CHECKING:
    from app.saved_states import StateFiles
    from engine import Model, Sampling, Session
    from engine.tuning import Sweep
    from engine.tuning_report import TuningReport

THREADS_AND_WEIGHTS = ("counts", "pinning", "weights")
KV_TYPES = ("kv",)
"""Parts of tuning, as ``engine.tuning_report`` names them."""
QUEUE_LENGTH = 8
CLOSE_PATIENCE_S = 0.3

OpenModel = Callable[[Path, Callable[[Any], None]], "Model"]
"""Opens a model and calls the second argument with the engine's ``Progress`` records."""

ExamineMachine = Callable[["Model | None", "Session | None", str, Callable[[Any], None]], Any]


def _recall_nothing(model: Model) -> Recalled:
    return Recalled()


def _watch_nothing() -> ConditionsWatch:
    return ConditionsWatch(None)


@record
class ChatOptions:
    """How the bridge opens models and asks for replies; see the settings of the same names."""

    open_model: OpenModel
    sampling: Callable[[], Sampling]
    """Called in the engine's thread, because building it imports the engine."""
    check_model: Callable[[Path], object] | None = None
    """Raises where a file cannot be opened, before the present model is closed for it."""
    context_size: int | None = None
    kv_type: str = AUTO
    max_tokens: int = 0
    """0 for no limit but the context."""
    on_opened: Callable[[Path], object] | None = None
    """Called in the engine's thread when a model is open: it may be remembered for the next start."""
    open_history: Callable[[], ReplyHistory] = ReplyHistory
    """Called in the engine's thread, for the speeds of earlier replies."""
    examine: ExamineMachine | None = None
    """Measures for the doctor, given model, session, type of the KV cache and a report of progress."""
    recall_tuned: Callable[[Model], Recalled] = _recall_nothing
    remember_tuned: Callable[[Model, TunedChoice | None, Measured | None], str | None] | None = None
    """Both called in the engine's thread; see ``engine_access``."""
    watch_conditions: Callable[[], ConditionsWatch] = _watch_nothing
    """What looks at the machine while something is measured; by default it sees nothing."""
    kernels_version: Callable[[], str] = str
    """Called in the engine's thread: names the compiled code."""
    state_files: Callable[[], StateFiles | None] | None = None
    """Called in the engine's thread: how the state of the cache is kept; None keeps none."""
    may_pin: bool = True
    """Whether tuning may find out if pinned threads are faster."""


@record
class Load:
    """Open a model in place of the present one and start a conversation, or go on with one that another model had."""

    path: Path
    system: str | None
    turns: tuple[PastTurn, ...] = ()
    """Questions and replies of the conversation."""
    turns_before: tuple[PastTurn, ...] = ()
    """Those of the present model, which reads them again if it has to be opened in place of the new one."""
    rereads: bool = True
    """Whether the model reads them before anything new is asked; else with what is asked next."""
    state: Path | None = None
    """Where the state of the cache may be found."""
    n_dropped: int = 0
    """Turns before these that are no part of the context any more."""


@record
class StartConversation:
    """Forget all turns."""

    system: str | None


@record
class OpenConversation:
    """Go on with another conversation; what it begins with like the present one is not read again."""

    system: str | None
    turns: tuple[PastTurn, ...]
    state: Path | None = None
    """Where the state of the cache may be found."""
    n_dropped: int = 0
    """Turns before these that are no part of the context any more."""


@record
class Ask:
    """Answer the user's next message."""

    text: str
    asked_s: float | None = None
    """When the user sent it, on the bridge's clock, if it had to wait."""
    keep_turns: int | None = None
    """Forget all turns but the first so many before it; None keeps all."""


@record
class Regenerate:
    """Answer the last message again in place of the reply it has."""


@record
class MeasureBandwidth:
    """Find out how fast memory can be read, if nothing else is to be done."""


@record
class Examine:
    """Measure the machine for the doctor; the loaded model stays as it is."""

    answer: Future[Any]
    """Gets an ``app.doctor.examine.Examination``, or the exception that prevented it."""


@record
class Prepare:
    """Count what stands in the prompt, and read it ahead while nothing else is asked."""

    text: str
    read_ahead: bool


@record
class Tune:
    """Find what is best; the time it may take follows from the parts."""

    parts: tuple[str, ...] = THREADS_AND_WEIGHTS
    """Of ``engine.tuning.BUDGETS_S``; what was found about others before stays."""


@record
class GrantThreads:
    """Wake the thread, so that it grants the wish for other threads."""


@record
class Continue:
    """Go on with the last reply from the tokens it has."""

    thinking: Thinking | None = None
    """What it thought so far."""


@record
class ContinueEdited:
    """Go on with a reply from what the user made of its text, and forget all turns after it."""

    text: str
    """In place of its answer, or of its thinking where there is no answer yet; exactly as it is to be."""
    n_turn: int
    """Whose reply it is, from 0 on."""
    thinking: Thinking | None = None
    """What it thought before the answer."""


@record
class Weigh:
    """Find out what ``Ask``, or ``ContinueEdited``, with the same values would cost; changes nothing."""

    text: str
    n_turn: int
    is_reply: bool = False


@record
class Close:
    """End the thread."""


Command = (
    Load
    | StartConversation
    | OpenConversation
    | Ask
    | Regenerate
    | Continue
    | ContinueEdited
    | Weigh
    | Prepare
    | MeasureBandwidth
    | Examine
    | Tune
    | GrantThreads
    | Close
)


class Written(Protocol):
    """The reply that is being written, with the beginning that it goes on from."""

    def ids(self) -> tuple[int, ...]:
        """Its tokens so far."""

    def text(self) -> str:
        """What they say, uncleaned."""


class Wire:
    """What both threads share. Only the engine's thread emits, only the screen's thread drains."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.commands: Queue[Command] = Queue(QUEUE_LENGTH)
        self.status = EngineStatus()
        self.figures = EngineFigures()
        self.is_watched = False
        """Whether a screen shows the figures."""
        self.cancelled = threading.Event()
        self.closing = threading.Event()
        self.reply: Reply | None = None
        """The running one."""
        self.written: Written | None = None
        """What there is of it."""
        self.idle_work = IdleWork()
        """What runs only until something is asked for."""
        self.sweep: Sweep | None = None
        """The running one."""
        self.state_path: Path | None = None
        """Where the states of the cache are kept for the conversation that is live."""
        self.state_file: Path | None = None
        """The one of them that belongs to the present model; None before it is known."""
        self.state_trouble = ""
        """Why it is not; "" if it is."""
        self.rereading: Session | None = None
        """Reads a conversation that another model had."""
        self.tuning: TuningReport | None = None
        """What the last sweep found, or the running one has found so far; None before one with this model."""
        self.tuning_conditions = Conditions()
        """What the machine did during the last sweep."""
        self.threads = ThreadWishes()
        self._messages: deque[EngineMessage] = deque()

    def emit(self, message: EngineMessage) -> None:
        """Hand a message to the screen."""
        self._messages.append(message)

    def drain(self) -> list[EngineMessage]:
        """Take everything emitted so far, in order, with neighbouring pieces of text joined."""
        taken = [self._messages.popleft() for _ in range(len(self._messages))]
        drained: list[EngineMessage] = []
        for kind, run in groupby(taken, type):
            messages = list(run)
            if kind is TextGenerated or kind is ThoughtGenerated:
                text = "".join(m.text for m in messages if isinstance(m, (TextGenerated, ThoughtGenerated)))
                messages = [kind(text)]
            drained += messages
        return drained


class EngineBridge:
    """The screen's handle on the engine's thread. Every method returns at once."""

    def __init__(self, options: ChatOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._wire = Wire(clock)
        self._thread = threading.Thread(target=self._run, name="jalopy-engine", daemon=True)

    @property
    def status(self) -> EngineStatus:
        """What the thread is doing."""
        return self._wire.status

    @property
    def figures(self) -> EngineFigures:
        """What the thread measured."""
        return self._wire.figures

    def watch(self, is_watched: bool) -> None:
        """Say whether a screen shows the figures; only then is the running reply's profile looked at."""
        self._wire.is_watched = is_watched

    def now_s(self) -> float:
        """Return the time on the thread's clock."""
        return self._wire.clock()

    @property
    def tuning(self) -> TuningReport | None:
        """What is known about the best thread counts of the loaded model."""
        return self._wire.tuning

    @property
    def tuning_conditions(self) -> Conditions:
        """What the machine did while that was measured."""
        return self._wire.tuning_conditions

    @property
    def threads(self) -> ThreadsInUse | None:
        """The threads in use; None while there is no model."""
        return self._wire.threads.in_use

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; call it after the first frame."""
        self._thread.start()

    def send(self, command: Command) -> bool:
        """Queue a command. False means that the queue is full and nothing was queued.

        ``Prepare`` is queued only while the thread has nothing to do, and any other command ends it.
        """
        if isinstance(command, Prepare):
            return self._send_idle_work(command)
        self._wire.idle_work.drop()
        if isinstance(command, (Ask, Regenerate, Continue, ContinueEdited, Tune, Load)):
            self._wire.cancelled.clear()
        try:
            self._wire.commands.put_nowait(command)
        except Full:
            return False
        return True

    def cancel(self) -> None:
        """Stop what runs, a turn, a sweep or the reading of a conversation, or the next one if it has not begun."""
        self._wire.cancelled.set()
        for running in (self._wire.reply, self._wire.sweep, self._wire.rereading):
            if running is not None:
                running.cancel()

    @property
    def written(self) -> tuple[tuple[int, ...], str]:
        """Tokens of the running reply, and what they say, uncleaned; nothing while none runs."""
        written = self._wire.written
        return (written.ids(), written.text()) if written is not None else ((), "")

    def keep_state(self, path: Path | None) -> None:
        """Say where the state of the cache belongs from the next token on; None keeps none."""
        self._wire.state_path = path

    @property
    def state_file(self) -> Path | None:
        """The file that the state of the cache is kept in; None for none."""
        return self._wire.state_file

    @property
    def state_trouble(self) -> str:
        """Why the state of the cache is not kept; "" if it is, or should not be."""
        return self._wire.state_trouble

    def wish_threads(self, wanted: ThreadsInUse) -> None:
        """Use and remember other threads: from the next token on if a reply is running, else at once."""
        self._wire.threads.wish(wanted)
        self.send(GrantThreads())  # a full queue does no harm: whatever runs grants it between two steps

    def drop_preparation(self) -> None:
        """What is being read ahead will not be sent."""
        self._wire.idle_work.drop()

    def drain(self) -> list[EngineMessage]:
        """Take what the thread has reported since the last call, in order."""
        self._wire.idle_work.insist()
        return self._wire.drain()

    def _send_idle_work(self, command: Prepare) -> bool:
        wire = self._wire
        is_free = wire.status.activity is Activity.READY and wire.commands.empty() and not wire.closing.is_set()
        if not is_free or not wire.idle_work.begin():
            return False
        wire.commands.put_nowait(command)
        return True

    def close(self, patience_s: float = CLOSE_PATIENCE_S) -> bool:
        """Cancel and end the thread, waiting no longer than a cancelled step takes.

        Returns:
            Whether the thread has ended; one that compiles has not, and dies with the process.
        """
        self._wire.closing.set()
        self.cancel()
        self.send(Close())
        if not self._thread.is_alive():
            return True
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        from app.engine_worker import EngineWorker

        EngineWorker(self._wire, self._options).run()
