"""The handle of the screen and the line mode on the engine's thread: every method submits work and
returns at once.

The handle never calls the engine, except ``Session.cancel``, which any thread may call. The engine
is imported in the thread, after the first frame. What computes the open model is a ``Backend``: the
engine here, or a server elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.backend.engine_state import FLUSH_S, QUEUE_LENGTH, Wire
from app.backend.fair_queue import QueueFullError
from app.backend.options import ChatOptions
from app.backend.protocol import THREADS_AND_WEIGHTS, Backend, DocumentToRead, Opening
from app.backend.status import Activity
from app.machine.tuning.threads_in_use import ThreadsInUse
from app.program.background import in_background
from app.program.refusals import Refusal
from app.session import events
from app.session.request import Request
from engine.prompt.tools.calls import ToolCall

if TYPE_CHECKING:
    from app.backend.local.backend import LocalBackend

CLOSE_PATIENCE_S = 0.3

BackendCall = Callable[[Backend], object]
"""Something for the backend with the open model to do."""
OnError = Callable[[str, BaseException], None]
"""Says what went wrong, in a line and as the exception."""


class EngineThread(Wire):
    """A conversation's handle on the engine.

    What returns whether it was submitted is False while too much waits.
    """

    def __init__(self, options: ChatOptions, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._options = options
        self.generation = options.generation
        """Parameters chosen with ``/set``; None where nothing can be chosen."""
        self.form = options.form
        """The form that ``/schema`` chose; None where none can be chosen."""
        self.tools = options.tools
        """The tools of the user's servers; None where none are used."""
        self.adapters = options.settings.adapters
        """What changes the model that opens first."""
        self._local: LocalBackend | None = None
        self._remote: Backend | None = None
        self._at_work: Backend | None = None
        """The one with the open model; None before the first."""

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self.host.is_alive

    def start(self) -> None:
        """Start the thread; call it after the first frame."""
        self.host.start()

    # ---- what the user waits for

    def reply(self, request: Request) -> bool:
        """Answer a request."""
        return self._ask(lambda backend: backend.reply(request), self._turn_failed)

    def open(self, opening: Opening) -> bool:
        """Open a model."""
        return self._submit(partial(self._open, opening))

    def read(self, request: Request) -> bool:
        """Read what is known of a request, whose last message may grow, and keep the state."""
        return self._ask(lambda backend: backend.read(request), self._reading_failed)

    def call_tools(self, calls: tuple[ToolCall, ...], allowed: frozenset[str]) -> bool:
        """Run the calls with which the last reply ends; those not allowed are told to the model as
        refused."""
        return self._ask(lambda backend: backend.call_tools(calls, allowed), self._turn_failed)

    def tune(self, parts: tuple[str, ...] = THREADS_AND_WEIGHTS) -> bool:
        """Search for the best thread counts, or other parts of tuning."""
        return self._ask(lambda backend: backend.tune(parts), self._tuning_failed)

    def use_adapters(self, adapters: tuple[str, ...]) -> bool:
        """Change the model by these adapters in place of those before."""
        return self._ask(
            lambda backend: backend.use_adapters(adapters),
            lambda reason, error: self.emit(events.AdaptersChanged(adapters, reason)),
        )

    # ---- what no one waits for

    def go_on_with(self, request: Request, state: Path | None = None) -> bool:
        """Take in another conversation, or a new one."""
        work = partial(
            self._with_open, lambda backend: backend.go_on_with(request, state), self._turn_failed
        )
        return self._submit(work, is_stoppable=False)

    def examine(self, answer: Future[Any]) -> bool:
        """Measure the machine for the doctor; the open model stays as it is."""
        return self._submit(lambda: self._local_backend().examine(answer), is_stoppable=False)

    def measure_bandwidth(self) -> bool:
        """Find out how fast memory can be read, if nothing else is to be done."""
        return self._submit(
            partial(self._unasked, lambda backend: backend.measure_bandwidth()), is_stoppable=False
        )

    def weigh(self, request: Request, draft: str) -> bool:
        """Say what a request would cost whose text is a ``draft``."""
        work = partial(self._unasked, lambda backend: backend.weigh(request, draft))
        # The other half of the line is for what is asked.
        return self._submit(work, is_stoppable=False, most=QUEUE_LENGTH // 2)

    def read_ahead(
        self, request: Request, draft: str, is_read: bool, is_settled: bool = False
    ) -> bool:
        """Count the tokens of a ``draft``, the request's last message, and read it while nothing is
        asked."""
        return self._submit_idle(
            lambda backend: backend.read_ahead(request, draft, is_read, is_settled)
        )

    def read_document(self, wanted: DocumentToRead) -> bool:
        """Say how much of a document is saved, and read the rest while nothing is asked."""
        return self._submit_idle(lambda backend: backend.read_document(wanted))

    def write_title(self, request: Request, conversation_id: str) -> bool:
        """Write a title for a conversation while nothing else is asked."""
        return self._submit_idle(lambda backend: backend.write_title(request, conversation_id))

    def cancel(self) -> None:
        """Stop what runs, or the next one if it has not begun: a turn, a sweep, opening a model,
        reading for it."""
        self.cancelled.set()
        if (work := self.work) is not None:
            work.cancel()

    def glance_at(self, path: Path) -> Future[object]:
        """Find out whether a path leads to a model file; the future's exception says why it does
        not."""
        return in_background(partial(self._options.glance_at_model, path), "glance")

    def request_threads(self, wanted: ThreadsInUse) -> None:
        """Use and remember other threads: from the next token on if a reply is running, else at
        once."""
        self.requested_threads.append(wanted)
        self.idle_work.drop()
        self.host.wake()

    def close(self, patience_s: float = CLOSE_PATIENCE_S, flush_s: float = FLUSH_S) -> bool:
        """Cancel and end the thread; False if it has not ended, as one that compiles, which dies
        with the process."""
        self.patience_s = flush_s
        self.idle_work.drop()
        self.host.close(0.0)
        self.cancel()
        return self.host.close(patience_s)

    # ---- into the line

    def _ask(self, call: BackendCall, on_error: OnError) -> bool:
        return self._submit(partial(self._with_open, call, on_error))

    def _submit(
        self, work: Callable[[], object], is_stoppable: bool = True, most: int | None = None
    ) -> bool:
        """Put work into the line, which ends idle work; a stop from before does not concern what is
        stoppable."""
        self.idle_work.drop()
        if is_stoppable:
            self.cancelled.clear()
        try:
            self.host.submit(work, limit=most)
        except QueueFullError:
            return False
        return True

    def _submit_idle(self, call: BackendCall) -> bool:
        """Do work while nothing is asked, one at a time; it is dropped by anything else."""
        is_free = self.status.activity is Activity.READY and not self.host.has_other_work
        if not is_free or not self.idle_work.begin():
            return False
        self.host.submit(partial(self._idly, call))
        return True

    # ---- the engine's thread: whatever work raises becomes an event, since the thread must outlive
    # any bug

    def _with_open(self, call: BackendCall, on_error: OnError) -> None:
        try:
            call(self._at_work or self._local_backend())
        except BaseException as error:
            on_error(events.reason_of(error), error)

    def _unasked(self, call: BackendCall) -> None:
        """No one has asked for anything yet: what is wrong is said when the message is sent."""
        if self._at_work is not None and self._at_work.is_open:
            self._with_open(call, lambda reason, error: None)

    def _idly(self, call: BackendCall) -> None:
        try:
            self._unasked(call)
        finally:
            self.idle_work.end()

    def _turn_failed(self, reason: str, error: BaseException) -> None:
        (self._at_work or self._local_backend()).settle()
        self.emit(events.GenerationFailed(reason, error=error))

    def _reading_failed(self, reason: str, error: BaseException) -> None:
        self.emit(events.ConversationReread(0, 0, 0.0, reason))

    def _tuning_failed(self, reason: str, error: BaseException) -> None:
        self.emit(events.TuningEnded(reason))

    def _open(self, opening: Opening) -> None:
        before = self._at_work
        backend = None
        try:
            backend = self._backend_for(opening)
            if before is not None and before.is_open:
                meter = self.status.meter
                try:
                    backend.look_at(opening.place)
                except Exception as error:
                    before.settle(meter)
                    self.emit(events.ModelKept(events.reason_of(error), is_open=True))
                    return
                if before is not backend:
                    before.unload()
            self._at_work = backend
            backend.open(opening)
        except BaseException as error:
            (backend or self._at_work or self._local_backend()).unload()
            self.emit(events.ModelFailed(events.reason_of(error), error))

    def _backend_for(self, opening: Opening) -> Backend:
        if isinstance(opening.place, Path):
            return self._local_backend()
        if self._options.remote is None:
            raise Refusal("models of servers cannot be used here")
        if self._remote is None:
            self._remote = self._options.remote(self, self._options)
        return self._remote

    def _local_backend(self) -> LocalBackend:
        if self._local is None:
            from app.backend.local.backend import LocalBackend

            self._local = LocalBackend(self, self._options)
        return self._local

    def _end(self) -> None:
        if self._options.tools is not None:
            self._options.tools.close()
        if self._at_work is not None:
            self._at_work.unload()
