"""The server's engine: opens the model, answers a few requests at once, and does short work between
their steps.

A slot is a session of the model with a thread of its own (``engine.batch``): what slots write is
computed together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from app.backend.fair_queue import FairQueue, QueueFullError
from app.backend.local import opening
from app.backend.local.model import LocalModel
from app.backend.local.saved_states import SavedStates
from app.backend.work_thread import WorkThread
from app.conversations.state_files import drop_oldest_states
from app.forms.answer_form import FormError
from app.program import garbage, paths
from app.program.background import fulfil, in_background
from app.program.refusals import bug_line, exit_code_of, line_of
from app.program.settings import Settings
from app.server.api_error import ApiError, unavailable, without_trace
from app.server.background_task import SLICE_S, BackgroundTask
from app.server.form_fields import api_error
from app.server.reply_task import Finish, Job
from app.server.reply_writer import Answering
from engine.errors import Cancelled, EngineError, MemoryPlanError, TemplateError
from engine.prompt.thinking_mode import ThinkingMode

DROP_STATES_PERIOD_S = 60.0
"""Seconds between two checks of the saved states against their quota."""
MOST_AT_ONCE = 4
"""Requests that are answered at once where nothing is said: each more costs the others less than it
gains (engine/PERFORMANCE.md), and needs memory for a context of its own."""
OTHERS_PATIENCE_S = 1.0
"""How long the end of the model waits for what other slots compute."""
MOST_ASIDES = 32
"""Limit on the pieces of short work that wait."""


class _Place:
    """Where the conversation of the requests is: in no file, but its states are kept if
    conversations are."""

    def __init__(self, settings: Settings) -> None:
        if settings.save_conversations == "on":
            self.state_path = paths.states_dir()
        else:
            self.state_path = None
        self.state_trouble = ""


class Slot:
    """A thread, and the session with which it answers one request after the other.

    Attributes:
        answering: set when the model is open.
        running: the request that is answered; None for none.
        n_dealt: requests that were handed out before the last one here; 0 where there was none.
    """

    answering: Answering

    def __init__(self, host: WorkThread) -> None:
        self.host = host
        self.running: Job | None = None
        self.n_dealt = 0


class ServedEngine:
    """The slots, and the line of those who wait for one.

    Args:
        settings: how it is opened, and what holds where a request sets nothing.
        most_at_once: limit on the requests that are answered at once; 0 for as many as pay and
            memory has room for.

    Attributes:
        opened: done when the model is open; or it has the exception that prevented that.
        model: None before it is open.
        served: how requests are answered; other threads may read what does not change. None before
            the model is open, and where it writes no text.
    """

    def __init__(
        self, path: Path, settings: Settings, most_waiting: int, most_at_once: int
    ) -> None:
        self._path = path
        self._settings = settings
        self._most_at_once = most_at_once
        self._queue: FairQueue[Job] = FairQueue(most_waiting)
        self._dealing = threading.Lock()
        """Held while it is decided who answers."""
        self._n_dealt = 0
        self._slots = [Slot(WorkThread(2, self._do_asides, self._end))]
        self._asides: deque[BackgroundTask] = deque()
        self._dropped_states_s = 0.0
        self._noted: set[str] = set()
        """Lines about forms that are in the log."""
        self.opened: Future[None] = Future()
        # one who waits for it no longer does not cancel it
        self.opened.set_running_or_notify_cancel()
        self.model: Any = None
        self.served: Answering | None = None

    # ---- any thread

    @property
    def n_waiting(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def n_running(self) -> int:
        """Requests that are answered now."""
        return sum(slot.running is not None for slot in self._slots)

    @property
    def is_busy(self) -> bool:
        """Whether anything runs or waits."""
        with self._dealing:  # or one is on its way from the line to a slot
            return bool(self.n_waiting or self.n_running or self._asides)

    @property
    def claimed_bytes(self) -> int:
        """Memory that the system calls available and the open model needs: mapped weights, and
        unwritten cache."""
        model = self.model
        if model is None:
            return 0
        unwritten: int = model.unwritten_bytes
        return unwritten + (model.weights_bytes if model.weights_mode == "mmap" else 0)

    @property
    def n_slots(self) -> int:
        """Requests that may be answered at once."""
        return len(self._slots)

    @property
    def _is_closing(self) -> bool:
        return self._slots[0].host.is_closing

    def start(self) -> None:
        """Open the model, then answer."""
        host = self._slots[0].host
        host.submit(self._begin)
        host.start()

    def ask(self, jobs: Sequence[Job]) -> None:
        """Have a request answered when its turn comes.

        Where too many wait, the last request of the client that has most of them is refused.

        Raises:
            ApiError: too many wait, and this client has as many as any other; or the server ends.
        """
        self._refuse_closed()
        if self.model is not None and self.served is None:
            raise writes_no_text()
        try:
            for job in jobs:
                given_up = self._queue.put_fairly(job.peer, job)
                if given_up is not None:
                    given_up.end(Finish("cancelled", error=_queue_full()))
                self._deal()
        except QueueFullError:
            self.drop(jobs)
            raise _queue_full() from None

    def drop(self, jobs: Sequence[Job]) -> None:
        """Drop a request whose client has left."""
        for job in jobs:
            job.cancel()
            if self._queue.remove(job):
                job.end(Finish("cancelled"))

    def _deal(self) -> None:
        """Hand those who wait to slots that are free, each to the one that suits it."""
        with self._dealing:
            while free := [
                slot for slot in self._slots if slot.running is None and not self._is_closing
            ]:
                job = self._queue.take()
                if job is None:
                    return
                slot = max(free, key=partial(_suitability, job))
                self._n_dealt += 1
                job.is_waiting = False
                slot.running = job
                slot.n_dealt = self._n_dealt
                slot.host.submit(partial(self._answer, slot, job))

    def aside(self, work: Callable[[Any], Any]) -> BackgroundTask:
        """Do short work, which is handed the model, between two steps of what runs.

        Raises ApiError: as ``ask``.
        """
        self._refuse_closed()
        if len(self._asides) >= MOST_ASIDES:
            raise _queue_full()
        aside = BackgroundTask(work, error_of)
        self._asides.append(aside)
        self._slots[0].host.wake()
        return aside

    def close(self, patience_s: float) -> None:
        """End what runs and what waits, then the threads."""
        ended = Finish("cancelled", error=ending())
        for slot in self._slots:
            slot.host.close(0.0)
        with self._dealing:  # from here on no one is handed to a slot
            while (job := self._queue.take()) is not None:
                job.end(ended)
            for slot in self._slots:
                running = slot.running
                if running is not None:
                    running.cancel()
                    # the thread did not begin with it, and will not
                    if slot.host.queue.take() is not None:
                        running.end(ended)
        for aside in list(self._asides):
            aside.end(ending())
        self._slots[0].host.close(patience_s)

    def forget(self) -> None:
        """Let go of the closed model, so that its memory can be given back."""
        self.model = self.served = None
        for slot in self._slots:
            slot.__dict__.pop("answering", None)

    def _refuse_closed(self) -> None:
        if self._is_closing:
            raise ending()

    # ---- the threads

    def _begin(self) -> None:
        fulfil(self.opened, self._open)
        if self.served is not None:
            self._deal()

    def _end(self) -> None:
        """Close the model, once no other thread computes with it."""
        if self.model is not None and all(
            slot.host.close(OTHERS_PATIENCE_S) for slot in self._slots[1:]
        ):
            for slot in self._slots if self.served is not None else ():
                slot.answering.states.close()
            self.model.close()

    def _open(self) -> None:
        settings = self._settings
        model: Any = None
        garbage.postpone()
        try:
            model = opening.open_model(settings, self._path)
            if settings.adapters:
                opening.use_adapters(model, settings.adapters)
            if model.config.is_encoder:
                model.embedder  # noqa: B018 - so that kernels are compiled now, and memory that is short is told
            else:
                self._open_slots(model)
                self.served = self._slots[0].answering
        except BaseException:
            if model is not None:
                model.close()
            raise
        finally:
            garbage.settle()
        self.model = model

    def _open_slots(self, model: Any) -> None:
        settings = self._settings
        chat = model.chat()  # before the session: it starts a process
        session = model.session(settings.context_size or None, opening.kv_type_of(settings, model))
        self._slots[0].answering = self._answering(
            LocalModel(model, session, chat, settings), self._do_asides
        )
        for _ in range(1, self._most_at_once or MOST_AT_ONCE):
            try:
                session = model.session(peer=session)
            except MemoryPlanError:
                if self._most_at_once:
                    raise
                break
            slot = Slot(WorkThread(1))
            slot.answering = self._answering(
                LocalModel(model, session, model.chat(), settings), lambda: None
            )
            slot.host.start()
            self._slots.append(slot)

    def _answering(self, local: LocalModel, between: Callable[[], object]) -> Answering:
        settings = self._settings
        files = opening.state_files(settings)
        states = SavedStates(_Place(settings), files, local.model, local.session, notes=False)
        thinking = ThinkingMode.parse(opening.recall_thinking(settings, self._path))
        return Answering(local, thinking, between, states, self._noted)

    def _answer(self, slot: Slot, job: Job) -> None:
        states = slot.answering.states
        try:
            is_dropped = job.is_cancelled or self._is_closing  # the end may not have seen this one
            if is_dropped:
                ended = Finish("cancelled")
            else:
                ended = slot.answering.answer(job)
        except Cancelled:  # before anything was computed
            ended = Finish("cancelled")
        except (
            BaseException
        ) as error:  # the thread must outlive any bug, or every client would wait forever
            ended = Finish("cancelled", error=error_of(error))
        finally:
            states.note_progress()
            slot.running = None
        if ended.reason == "cancelled" and ended.error is None and self._is_closing:
            ended = Finish("cancelled", error=ending())
        job.end(ended)
        self._deal()
        self._drop_old_states()

    def _drop_old_states(self) -> None:
        quota_bytes = self._settings.kv_states_quota_bytes
        now_s = time.monotonic()
        if quota_bytes and now_s - self._dropped_states_s >= DROP_STATES_PERIOD_S:
            self._dropped_states_s = now_s
            in_background(partial(drop_oldest_states, quota_bytes), "quota")

    def _do_asides(self) -> bool:
        """Work at short work for a slice; whether more of it waits."""
        model = self.model
        until_s = time.monotonic() + SLICE_S
        while model is not None and self._asides and time.monotonic() < until_s:
            aside = self._asides.popleft()
            if not aside.advance(model, until_s):
                self._asides.append(aside)
        return bool(self._asides)


def _suitability(job: Job, slot: Slot) -> tuple[int, int]:
    """By what a slot holds of the request's conversation, then by how long ago another request came
    there."""
    return slot.answering.n_held(job.order), -slot.n_dealt


def _queue_full() -> ApiError:
    return unavailable("too many requests wait (try again later)", "queue_full")


def writes_no_text() -> ApiError:
    """Return the refusal of those who ask an embedder for text."""
    return ApiError(
        "this model writes no text (/v1/embeddings makes vectors)", code="unsupported_model"
    )


def ending() -> ApiError:
    """Return the refusal of those who ask when the server ends."""
    return unavailable("the server ends", "shutting_down")


def error_of(error: BaseException) -> ApiError:
    """Return what a client is told.

    A bug goes to the log and is only named. Neither keeps a traceback.
    """
    told = without_trace(_api_error_of(error))
    without_trace(error)
    return told


def _api_error_of(error: BaseException) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, FormError):
        return api_error(error)
    if isinstance(error, Cancelled):
        return ending()
    if isinstance(error, TemplateError):
        return ApiError(str(error), param="messages", code="template_refuses")
    if isinstance(error, EngineError) or exit_code_of(error) is not None:
        return ApiError(line_of(error).removeprefix("jalopy: "), 500, code="engine_error")
    return ApiError(bug_line(error, " in the engine"), 500, code="internal_error")
