"""The screen's handle on the engine's one long-lived thread; what passes between them is ``app.chat.wire``'s.

It never calls the engine, except ``Session.cancel``, which any thread may call. The thread's side is
``app.chat.crew``; it is imported there, after the first frame, because it brings in the engine.

The thread is a plain daemon thread and not a Textual worker: those run in asyncio's executor, which is joined at exit,
so that a compilation in progress would hold up quitting for as long as it lasts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Full
from typing import TYPE_CHECKING

from app.chat import commands
from app.chat.events import Event
from app.chat.options import ChatOptions
from app.chat.status import Activity, EngineStatus
from app.chat.wire import FLUSH_S, QUEUE_LENGTH, Wire
from app.machine.records import EngineFigures
from app.machine.tuning_conditions import Conditions
from app.program.background import in_background
from app.tuning.threads_in_use import ThreadsInUse

if TYPE_CHECKING:
    from engine.tuning.report import TuningReport

CLOSE_PATIENCE_S = 0.3


class EngineBridge:
    """The screen's handle on the engine's thread. Every method returns at once."""

    def __init__(self, options: ChatOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self.generation = options.generation
        """Parameters chosen with ``/set``; None where nothing can be chosen."""
        self.form = options.form
        """The form that ``/schema`` chose; None where none can be chosen."""
        self.tools = options.tools
        """The tools of the user's servers; None where none are used."""
        self._wire = Wire(clock)
        self._thread = threading.Thread(target=self._run, name="jalopy-engine", daemon=True)

    @property
    def status(self) -> EngineStatus:
        """Activity of the thread, replaced as a whole."""
        return self._wire.status

    @property
    def figures(self) -> EngineFigures:
        """Measurements of the thread, for the performance screen."""
        return self._wire.figures

    def watch(self, is_watched: bool) -> None:
        """Say whether a screen shows the figures; only then is the running reply's profile looked at."""
        self._wire.is_watched = is_watched

    def now_s(self) -> float:
        """Return the time on the thread's clock."""
        return self._wire.clock()

    @property
    def tuning(self) -> TuningReport | None:
        """Report of the running or last search for the best threads of the loaded model."""
        return self._wire.tuning

    @property
    def tuning_conditions(self) -> Conditions:
        """State of the machine during that search."""
        return self._wire.tuning_conditions

    @property
    def threads(self) -> ThreadsInUse | None:
        """The threads in use; None while there is no model."""
        return self._wire.threads.in_use

    @property
    def thinking(self) -> str:
        """How much the open model is asked to think, in the words of the setting; "" while none is open."""
        return self._wire.thinking

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; call it after the first frame."""
        self._thread.start()

    def send(self, command: commands.Command) -> bool:
        """Queue a command. False means that the queue is full and nothing was queued.

        ``Prepare`` is queued only while the thread has nothing to do, and any other command ends it.
        """
        if isinstance(command, commands.Prepare):
            return self._send_idle_work(command)
        is_full = self._wire.commands.qsize() >= QUEUE_LENGTH // 2
        if is_full and isinstance(command, (commands.Weigh, commands.GrantThreads)):
            return False  # nobody waits for these; the other half is for what is asked
        self._wire.idle_work.drop()
        if isinstance(command, commands.STOPPABLE):
            self._wire.cancelled.clear()
        try:
            self._wire.commands.put_nowait(command)
        except Full:
            return False
        return True

    def cancel(self) -> None:
        """Stop what runs, or the next one if it has not begun: a turn, a sweep, opening a model, reading for it."""
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
    def state_trouble(self) -> str:
        """Why the state of the cache is not kept; "" if it is, or should not be."""
        return self._wire.state_trouble

    def glance_at(self, path: Path) -> Future[object]:
        """Find out whether a path leads to a model file; the future's exception says why it does not."""
        return in_background(partial(self._options.glance_at_model or str, path), "glance")

    def wish_threads(self, wanted: ThreadsInUse) -> None:
        """Use and remember other threads: from the next token on if a reply is running, else at once."""
        self._wire.threads.wish(wanted)
        self.send(commands.GrantThreads())  # a full queue does no harm: whatever runs grants it between two steps

    def drop_preparation(self) -> None:
        """Stop reading ahead: the draft will not be sent."""
        self._wire.idle_work.drop()

    def has_news(self) -> bool:
        """Whether there is something to drain; cancels dropped work once more, as ``drain`` does."""
        self._wire.idle_work.insist()
        return self._wire.arrived.is_set()

    def drain(self) -> list[Event]:
        """Take what the thread has reported since the last call, in order."""
        self._wire.idle_work.insist()
        return self._wire.drain()

    def _send_idle_work(self, command: commands.Prepare) -> bool:
        wire = self._wire
        is_free = wire.status.activity is Activity.READY and wire.commands.empty() and not wire.closing.is_set()
        if not is_free or not wire.idle_work.begin():
            return False
        wire.commands.put_nowait(command)
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to drain, no longer than this."""
        self._wire.arrived.wait(timeout_s)

    def close(self, patience_s: float = CLOSE_PATIENCE_S, flush_s: float = FLUSH_S) -> bool:
        """Cancel and end the thread, waiting no longer than a cancelled step takes.

        Args:
            flush_s: how long the thread itself waits for the state of the cache to be on disk.

        Returns:
            Whether the thread has ended; one that compiles has not, and dies with the process.
        """
        self._wire.patience_s = flush_s
        self._wire.closing.set()
        self.cancel()
        self.send(commands.Close())
        if not self._thread.is_alive():
            return True
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        from app.chat.crew import Crew

        Crew(self._wire, self._options).run()
