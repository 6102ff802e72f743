"""The engine's one long-lived thread, and the screen's handle on it.

The handle never calls the engine, except ``Session.cancel``, which any thread may call. The engine is imported in the
thread, after the first frame.

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

from app.chat import commands, events
from app.chat.commands import Command, Worker
from app.chat.options import ChatOptions
from app.chat.status import Activity
from app.chat.wire import FLUSH_S, QUEUE_LENGTH, Wire
from app.program.background import in_background
from app.program.refusals import Refusal
from app.tuning.threads_in_use import ThreadsInUse

CLOSE_PATIENCE_S = 0.3


class EngineBridge(Wire):
    """The wire with the engine's thread at its other end. Every method returns at once."""

    def __init__(self, options: ChatOptions, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._options = options
        self.generation = options.generation
        """Parameters chosen with ``/set``; None where nothing can be chosen."""
        self.form = options.form
        """The form that ``/schema`` chose; None where none can be chosen."""
        self.tools = options.tools
        """The tools of the user's servers; None where none are used."""
        self._thread = threading.Thread(target=Backends(self, options).run, name="jalopy-engine", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; call it after the first frame."""
        self._thread.start()

    def send(self, command: Command) -> bool:
        """Queue a command. False means that the queue is full and nothing was queued.

        Idle work is queued only while the thread has nothing to do, and any other command ends it.
        """
        if isinstance(command, commands.IDLE_WORK):
            return self._send_idle_work(command)
        is_full = self.commands.qsize() >= QUEUE_LENGTH // 2
        if is_full and isinstance(command, (commands.Weigh, commands.GrantThreads)):
            return False  # no one waits for these; the other half is for what is asked
        self.idle_work.drop()
        if isinstance(command, commands.STOPPABLE):
            self.cancelled.clear()
        try:
            self.commands.put_nowait(command)
        except Full:
            return False
        return True

    def _send_idle_work(self, command: Command) -> bool:
        is_free = self.status.activity is Activity.READY and self.commands.empty() and not self.closing.is_set()
        if not is_free or not self.idle_work.begin():
            return False
        self.commands.put_nowait(command)
        return True

    def cancel(self) -> None:
        """Stop what runs, or the next one if it has not begun: a turn, a sweep, opening a model, reading for it."""
        self.cancelled.set()
        if (work := self.work) is not None:
            work.cancel()

    def glance_at(self, path: Path) -> Future[object]:
        """Find out whether a path leads to a model file; the future's exception says why it does not."""
        return in_background(partial(self._options.glance_at_model, path), "glance")

    def wish_threads(self, wanted: ThreadsInUse) -> None:
        """Use and remember other threads: from the next token on if a reply is running, else at once."""
        self.wishes.append(wanted)
        self.send(commands.GrantThreads())  # a full queue does no harm: whatever runs grants it between two steps

    def close(self, patience_s: float = CLOSE_PATIENCE_S, flush_s: float = FLUSH_S) -> bool:
        """Cancel and end the thread; False if it has not ended, as one that compiles, which dies with the process."""
        self.patience_s = flush_s
        self.closing.set()
        self.cancel()
        self.send(commands.Close())
        if self.is_alive:
            self._thread.join(patience_s)
        return not self.is_alive


class Backends:
    """The thread's side: hands each command to what computes the open model, the engine here or a server elsewhere.

    Both answer in the same events, so that no one else needs to know which it is; each is made when first needed.
    """

    def __init__(self, wire: Wire, options: ChatOptions) -> None:
        self._wire, self._options = wire, options
        self._local: Worker | None = None
        self._remote: Worker | None = None
        self._at_work: Worker | None = None
        """The one with the open model; None before the first command."""

    def run(self) -> None:
        """Take commands until ``Close``. Whatever a command raises becomes an event."""
        while not self._wire.closing.is_set():
            command = self._wire.commands.get()
            if isinstance(command, commands.Close):
                break
            worker = None
            try:
                worker = self._worker_for(command)
                if worker is not None:
                    worker.obey(command)
            except BaseException as error:  # the thread must outlive any bug, or the chat would wait forever
                self._report(worker or self._at_work or self._local_worker(), command, error)
        if self._options.tools is not None:
            self._options.tools.close()
        if self._at_work is not None:
            self._at_work.unload()

    def _report(self, worker: Worker, command: Command, error: BaseException) -> None:
        """Say what went wrong with a command."""
        reason = events.reason_of(error)
        if isinstance(command, commands.UNASKED):
            return  # no one has asked for anything yet; what is wrong is said when the message is sent
        if isinstance(command, commands.Load):
            worker.unload()
            self._wire.emit(events.ModelFailed(reason, error))
        elif isinstance(command, commands.Tune):
            self._wire.emit(events.TuningEnded(reason))
        elif isinstance(command, commands.Read):
            self._wire.emit(events.ConversationReread(0, 0, 0.0, reason))
        else:
            worker.settle()
            self._wire.emit(events.GenerationFailed(reason, error=error))

    def _worker_for(self, command: Command) -> Worker | None:
        """Return who carries a command out; None where it was said why a model is not opened."""
        if isinstance(command, commands.Examine):
            return self._local_worker()
        if not isinstance(command, commands.Load):
            return self._at_work or self._local_worker()
        before, chosen = self._at_work, self._opener(command)
        if before is not None and before.is_open:
            meter = self._wire.status.meter
            try:
                chosen.look_at(command.path)
            except Exception as error:
                before.settle(meter)
                self._wire.emit(events.ModelKept(events.reason_of(error), is_open=True))
                return None
            if before is not chosen:
                before.unload()
        self._at_work = chosen
        return chosen

    def _opener(self, command: commands.Load) -> Worker:
        if isinstance(command.path, Path):
            return self._local_worker()
        if self._options.remote is None:
            raise Refusal("models of servers cannot be used here")
        if self._remote is None:
            self._remote = self._options.remote(self._wire, self._options)
        return self._remote

    def _local_worker(self) -> Worker:
        if self._local is None:
            from app.chat.worker import EngineWorker

            self._local = EngineWorker(self._wire, self._options)
        return self._local
