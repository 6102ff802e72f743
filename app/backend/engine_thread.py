"""The engine thread as the screen and the line mode use it: every method returns at once.

``EngineThread`` submits work to the inbox, and the engine thread writes state and events to the
outbox. The only call from another thread into the engine is ``cancel``. The engine is imported in
its thread, after the first frame. A ``Backend`` computes for the open model: the engine of this
machine, or a remote server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.backend.engine_link import FLUSH_S, QUEUE_LENGTH, EngineLink, WrittenReply, nothing_written
from app.backend.engine_state import EngineState
from app.backend.options import ChatOptions
from app.backend.protocol import THREADS_AND_WEIGHTS, Backend, DocumentToRead, Opening
from app.backend.status import Activity, EngineStatus
from app.backend.work_thread import QueueFullError
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
"""Work for the backend of the open model."""
OnError = Callable[[str, BaseException], None]
"""Reports an exception, and the same as one line."""


class EngineThread:
    """The engine thread of one conversation.

    Methods that return a bool return False if the request was not accepted because too many wait.

    Attributes:
        settings: settings in effect; the engine thread itself does not read them.
        recalls_choices: whether what ``/set keep`` and ``/system keep`` saved is used.
        form: form of all replies, from the command line; None for that of the conversation.
        tools: tools of the user's servers; None if no tools are used.
        adapters: adapters of the model that opens first.
        inbox: requests to the engine thread.
    """

    def __init__(self, options: ChatOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._link = EngineLink(clock, self._end)
        self._worker = self._link.worker
        self._outbox = self._link.outbox
        self.inbox = self._link.inbox
        self.now_s = clock
        self.settings = options.settings
        self.recalls_choices = options.recalls_choices
        self.form = options.form
        self.tools = options.tools
        self.adapters = options.settings.adapters
        self._backends = _Backends(self._link, options)

    # ---- state and events

    @property
    def state(self) -> EngineState:
        """Current state."""
        return self._outbox.state

    @property
    def status(self) -> EngineStatus:
        """Current activity and its progress."""
        return self._outbox.state.status

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._worker.is_alive

    @property
    def written(self) -> WrittenReply:
        """Tokens and text of the running reply so far."""
        running = self._outbox.running
        if running is None:
            return nothing_written()
        return running.written()

    def has_events(self) -> bool:
        """Return whether there are events to drain."""
        self.inbox.idle_work.drop_again()
        return self._outbox.arrived.is_set()

    def wait_for_event(self, patience_s: float) -> None:
        """Wait until there is an event, but at most ``patience_s`` seconds."""
        self._outbox.arrived.wait(patience_s)

    def drain(self) -> list[events.Event]:
        """Remove all events and return them in order, with adjacent pieces of text joined."""
        self.inbox.idle_work.drop_again()
        return self._outbox.drain()

    # ---- the thread

    def start(self) -> None:
        """Start the thread; call this after the first frame."""
        self._worker.start()

    def cancel(self) -> None:
        """Stop the running request, or the next one if none runs."""
        self.inbox.stop_requested.set()
        self.inbox.idle_work.drop()
        running = self._outbox.running
        if running is not None:
            running.work.cancel()

    def close(self, patience_s: float = CLOSE_PATIENCE_S, flush_s: float = FLUSH_S) -> bool:
        """Cancel everything and end the thread.

        Returns:
            False if the thread has not ended, as when it compiles; it dies with the process.
        """
        self.inbox.flush_s = flush_s
        self.inbox.idle_work.drop()
        self._worker.close(0.0)
        self.cancel()
        return self._worker.close(patience_s)

    def _end(self) -> None:
        if self._options.tools is not None:
            self._options.tools.close()
        self._backends.unload()

    # ---- requests that the user waits for

    def open(self, opening: Opening) -> bool:
        """Open a model."""
        return self._submit(partial(self._backends.open, opening))

    def reply(self, request: Request) -> bool:
        """Answer a request."""
        work = partial(
            self._backends.call, lambda backend: backend.reply(request), self._report_failed_turn
        )
        text = request.messages[-1].text if request.messages else ""
        return self._submit(work, text=text)

    def compare(self, place: Path, request: Request, back: Opening) -> bool:
        """Answer a request with another model, and open the present one again."""
        return self._request(
            lambda backend: backend.compare(place, request, back), self._report_failed_turn
        )

    def read(self, request: Request) -> bool:
        """Prefill a request whose last message may grow, and save the state."""

        def report(reason: str, error: BaseException) -> None:
            self._link.emit(events.ConversationReread(0, 0, 0.0, reason))

        return self._request(lambda backend: backend.read(request), report)

    def call_tools(self, calls: tuple[ToolCall, ...], settled: Mapping[str, str]) -> bool:
        """Run tool calls; ``settled`` has the results of those that do not run, by their ids."""
        return self._request(
            lambda backend: backend.call_tools(calls, settled), self._report_failed_turn
        )

    def tune(self, parts: tuple[str, ...] = THREADS_AND_WEIGHTS) -> bool:
        """Search for the best threads, or other parts of tuning."""

        def report(reason: str, error: BaseException) -> None:
            self._link.emit(events.TuningEnded(reason))

        return self._request(lambda backend: backend.tune(parts), report)

    def use_adapters(self, adapters: tuple[str, ...]) -> bool:
        """Replace the adapters of the model."""

        def report(reason: str, error: BaseException) -> None:
            self._link.emit(events.AdaptersChanged(adapters, reason))

        return self._request(lambda backend: backend.use_adapters(adapters), report)

    # ---- work that the user does not wait for

    def continue_conversation(self, request: Request, state: Path | None = None) -> bool:
        """Continue another conversation, or begin a new one."""
        work = partial(
            self._backends.call,
            lambda backend: backend.continue_conversation(request, state),
            self._report_failed_turn,
        )
        return self._submit(work, is_stoppable=False)

    def examine(self, answer: Future[Any]) -> bool:
        """Measure the machine for the doctor; the open model stays as it is."""
        return self._submit(lambda: self._backends.local().examine(answer), is_stoppable=False)

    def measure_bandwidth(self) -> bool:
        """Measure how fast memory can be read, if the engine has nothing else to do."""
        work = partial(self._backends.call_quietly, lambda backend: backend.measure_bandwidth())
        return self._submit(work, is_stoppable=False)

    def weigh(self, request: Request, draft: str) -> bool:
        """Report the cost of a request that has ``draft`` as its text."""
        work = partial(self._backends.call_quietly, lambda backend: backend.weigh(request, draft))
        # The other half of the queue is for requests that the user waits for.
        return self._submit(work, is_stoppable=False, limit=QUEUE_LENGTH // 2)

    def read_ahead(
        self, request: Request, draft: str, is_read: bool, is_settled: bool = False
    ) -> bool:
        """Count the tokens of ``draft``, the last message of the request, and prefill it while
        idle."""
        return self._submit_idle(
            lambda backend: backend.read_ahead(request, draft, is_read, is_settled)
        )

    def read_document(self, document: DocumentToRead) -> bool:
        """Report how much of a document is saved, and prefill the rest while idle."""
        return self._submit_idle(lambda backend: backend.read_document(document))

    def write_title(self, request: Request, conversation_id: str) -> bool:
        """Write a title for a conversation while idle."""
        return self._submit_idle(
            lambda backend: backend.write_title(request, conversation_id), "writing a title"
        )

    def request_threads(self, threads: ThreadsInUse) -> None:
        """Use and remember other threads, from the next token on if a reply is being written."""
        self.inbox.requested_threads.append(threads)
        self.inbox.idle_work.drop()
        self._worker.wake()

    def request_kv_type(self, kv_type: str) -> bool:
        """Use another type of KV cache after the running reply."""
        self.inbox.requested_kv_type = kv_type
        work = partial(self._backends.call_quietly, lambda backend: backend.use_kv_type())
        return self._submit(work, is_stoppable=False)

    def glance_at(self, path: Path) -> Future[object]:
        """Check whether a path leads to a model file; the future raises the reason if it does
        not."""
        return in_background(partial(self._options.glance_at_model, path), "glance")

    # ---- submitting

    def _request(self, call: BackendCall, on_error: OnError) -> bool:
        return self._submit(partial(self._backends.call, call, on_error))

    def _submit(
        self,
        work: Callable[[], object],
        is_stoppable: bool = True,
        limit: int | None = None,
        text: str = "",
    ) -> bool:
        """Queue work and end idle work.

        Args:
            text: as in ``IdleWork.drop``.
            is_stoppable: whether the user can stop the work; an earlier stop does not apply to it.
        """
        self.inbox.idle_work.drop(text)
        if is_stoppable:
            self.inbox.stop_requested.clear()
        try:
            self._worker.submit(work, limit=limit)
        except QueueFullError:
            return False
        return True

    @property
    def idle_work_name(self) -> str:
        """Name of the work that is done while nothing is requested; "" if there is none."""
        if self.status.activity is not Activity.READY or not self.inbox.idle_work.is_pending:
            return ""
        return self.inbox.idle_work.name

    def _submit_idle(self, call: BackendCall, name: str = "") -> bool:
        """Queue work that anything else ends, one piece at a time."""
        is_idle = self.status.activity is Activity.READY and not self._worker.has_other_work
        if not is_idle or not self.inbox.idle_work.begin(name):
            return False
        self._worker.submit(partial(self._do_idle_work, call))
        return True

    # ---- in the engine thread

    def _do_idle_work(self, call: BackendCall) -> None:
        try:
            self._backends.call_quietly(call)
        finally:
            self.inbox.idle_work.end()

    def _report_failed_turn(self, reason: str, error: BaseException) -> None:
        self._backends.current().report_free()
        self._link.emit(events.GenerationFailed(reason, error=error))


class _Backends:
    """The backends and which of them has the open model. Only the engine thread uses them.

    Exceptions become events: the thread must survive every bug.
    """

    def __init__(self, link: EngineLink, options: ChatOptions) -> None:
        self._link = link
        self._options = options
        self._local: LocalBackend | None = None
        self._remote: Backend | None = None
        self._current: Backend | None = None
        """Backend of the model opened last; None before the first."""

    def current(self) -> Backend:
        """Return the backend of the model opened last, or the local one."""
        return self._current or self.local()

    def local(self) -> LocalBackend:
        """Return the engine of this machine."""
        if self._local is None:
            from app.backend.local.backend import LocalBackend

            self._local = LocalBackend(self._link, self._options)
        return self._local

    def call(self, call: BackendCall, on_error: OnError) -> None:
        """Let the current backend do work."""
        try:
            call(self.current())
        except BaseException as error:
            on_error(events.reason_of(error), error)

    def call_quietly(self, call: BackendCall) -> None:
        """Do background work, if a model is open.

        Errors are not reported: they will be when the message is sent.
        """
        if self._current is not None and self._current.is_open:
            self.call(call, lambda reason, error: None)

    def open(self, opening: Opening) -> None:
        """Open a model; the previous one stays open if the new one cannot be used."""
        previous = self._current
        backend = None
        try:
            backend = self._backend_for(opening)
            if previous is not None and previous.is_open:
                meter = self._link.status.meter
                try:
                    backend.look_at(opening.place)
                except Exception as error:
                    previous.report_free(meter)
                    self._link.emit(events.ModelSwitchFailed(events.reason_of(error), is_open=True))
                    return
                if previous is not backend:
                    previous.unload()
            self._current = backend
            backend.open(opening)
        except BaseException as error:
            (backend or self.current()).unload()
            self._link.emit(events.ModelFailed(events.reason_of(error), error))

    def unload(self) -> None:
        """Close the open model, if there is one."""
        if self._current is not None:
            self._current.unload()

    def _backend_for(self, opening: Opening) -> Backend:
        if isinstance(opening.place, Path):
            return self.local()
        if self._options.remote is None:
            raise Refusal("models of servers cannot be used here")
        if self._remote is None:
            self._remote = self._options.remote(self._link, self._options)
        return self._remote
