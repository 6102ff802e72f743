"""Engine of one served model: opens the model, writes several replies at once, and runs background
tasks between their steps.

A slot is a session of the model with its own thread. Tokens of all slots are computed together
(``engine.batch``).
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

from app.backend.local import engine_access
from app.backend.local.model import LocalModel
from app.backend.local.prompt_pictures import PictureRefusal
from app.backend.local.saved_states import SavedStates
from app.backend.work_thread import FairQueue, QueueFullError, WorkThread
from app.conversations.state_files import drop_oldest_states
from app.forms.answer_form import FormError
from app.program import garbage, paths
from app.program.background import fulfil, in_background
from app.program.refusals import bug_line, exit_code_of, line_of
from app.program.settings import Settings
from app.server.api_error import ApiError, unavailable, without_trace
from app.server.background_task import SLICE_S, BackgroundTask
from app.server.form_fields import form_api_error
from app.server.reply_task import Finish, ReplyTask
from app.server.reply_writer import ReplyWriter
from engine.errors import Cancelled, EngineError, MemoryPlanError, TemplateError
from engine.prompt.thinking import ThinkingMode

DROP_STATES_PERIOD_S = 60.0
"""Time between two checks of the saved states against their quota."""
MAX_AT_ONCE = 4
"""Default limit on the replies that are written at once.

Each additional one costs the others less time than it gains (engine/PERFORMANCE.md), and needs
memory for its own context.
"""
OTHER_SLOTS_PATIENCE_S = 1.0
"""Time that closing the model waits for the computations of other slots."""
MAX_BACKGROUND_TASKS = 32
"""Limit on the background tasks that wait."""


class _StatePlace:
    """Where the states of requests are saved: there is no conversation file, but the states are
    saved if the settings save conversations."""

    def __init__(self, settings: Settings) -> None:
        self.state_path: Path | None = None
        if settings.save_conversations == "on":
            self.state_path = paths.states_dir()
        self.state_trouble = ""


class Slot:
    """A thread that writes one reply after another in its own session.

    Attributes:
        thread: The thread.
        writer: Set when the model is open.
        task: The reply that is being written; None if the slot is free.
        last_number: Number of the last task that the slot got, counted over all slots; 0 before
            the first.
    """

    writer: ReplyWriter

    def __init__(self, thread: WorkThread) -> None:
        self.thread = thread
        self.task: ReplyTask | None = None
        self.last_number = 0


class ServedEngine:
    """The slots of one model, and the queue of requests that wait for a slot.

    Args:
        path: File of the model.
        settings: Settings for opening the model, and defaults for requests.
        max_waiting: Limit on the requests in the queue.
        max_at_once: Limit on the replies that are written at once; 0 for as many as are useful and
            fit in memory.
        context_limit: Limit on the context, in tokens, if the settings set none.
        suffix_first: Whether the text after a gap comes first in prompts that fill it.

    Attributes:
        opened: Future that is done when the model is open, or has the error that prevented it.
        model: None before it is open.
        writer: Writer of the first slot, whose constant attributes other threads may read. None
            before the model is open, and if the model writes no text.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        max_waiting: int,
        max_at_once: int,
        context_limit: int,
        suffix_first: bool,
    ) -> None:
        self._path = path
        self._settings = settings
        self._max_at_once = max_at_once
        self._context_limit = context_limit
        self._suffix_first = suffix_first
        self._queue: FairQueue[ReplyTask] = FairQueue(max_waiting)
        self._assigning = threading.Lock()
        """Protects the assignment of tasks to slots."""
        self._n_assigned = 0
        self._slots = [Slot(WorkThread(2, self._advance_background_tasks, self._close_model))]
        self._background_tasks: deque[BackgroundTask] = deque()
        self._dropped_states_s = 0.0
        self._logged_notes: set[str] = set()
        """Notes about forms that are in the log."""
        self.opened: Future[None] = Future()
        # A running future cannot be cancelled by a caller that stops waiting for it.
        self.opened.set_running_or_notify_cancel()
        self.model: Any = None
        self.writer: ReplyWriter | None = None

    # ---- any thread

    @property
    def n_waiting(self) -> int:
        """Number of tasks in the queue."""
        return len(self._queue)

    @property
    def n_running(self) -> int:
        """Number of replies that are being written."""
        return sum(slot.task is not None for slot in self._slots)

    @property
    def is_busy(self) -> bool:
        """Whether anything runs or waits."""
        with self._assigning:  # Otherwise a task may be between the queue and a slot.
            return bool(self.n_waiting or self.n_running or self._background_tasks)

    @property
    def claimed_bytes(self) -> int:
        """Memory that the open model needs although the system reports it as available: mapped
        weights and unwritten cache."""
        model = self.model
        if model is None:
            return 0
        unwritten_bytes: int = model.unwritten_bytes
        if model.weights_mode == "mmap":
            return unwritten_bytes + int(model.weights_bytes)
        return unwritten_bytes

    @property
    def n_slots(self) -> int:
        """Number of replies that can be written at once."""
        return len(self._slots)

    @property
    def _is_closing(self) -> bool:
        return self._slots[0].thread.is_closing

    def start(self) -> None:
        """Open the model, then answer requests."""
        thread = self._slots[0].thread
        thread.submit(self._start)
        thread.start()

    def submit(self, tasks: Sequence[ReplyTask]) -> None:
        """Queue the replies to a request.

        If the queue is full, the last request of the client with most requests is refused.

        Raises:
            ApiError: The queue is full and no client has more requests in it, or the server stops.
        """
        self._refuse_if_closing()
        if self.model is not None and self.writer is None:
            raise writes_no_text()
        self._supersede_older(tasks[0])
        try:
            for task in tasks:
                dropped_task = self._queue.put_fairly(task.peer, task)
                if dropped_task is not None:
                    dropped_task.end(Finish("cancelled", error=_queue_full()))
                self._assign()
        except QueueFullError:
            self.drop(tasks)
            raise _queue_full() from None

    def _supersede_older(self, newest: ReplyTask) -> None:
        """End completions that the client of a new one no longer shows, since it typed on."""
        if newest.request.infill is None:
            return
        running = [slot.task for slot in self._slots if slot.task is not None]
        for task in (*running, *self._queue.entries(newest.peer)):
            if not newest.request.supersedes(task.request) or task.peer != newest.peer:
                continue
            task.supersede()
            if self._queue.remove(task):
                task.end(Finish("length"))

    def drop(self, tasks: Sequence[ReplyTask]) -> None:
        """End the tasks of a client that has left."""
        for task in tasks:
            task.cancel()
            if self._queue.remove(task):
                task.end(Finish("cancelled"))

    def _assign(self) -> None:
        """Give waiting tasks to free slots, each to the most suitable one."""
        with self._assigning:
            while free_slots := [
                slot for slot in self._slots if slot.task is None and not self._is_closing
            ]:
                task = self._queue.take()
                if task is None:
                    return
                slot = max(free_slots, key=partial(_suitability, task))
                self._n_assigned += 1
                task.is_waiting = False
                slot.task = task
                slot.last_number = self._n_assigned
                slot.thread.submit(partial(self._write, slot, task))

    def run_between_steps(self, work: Callable[[Any], Any]) -> BackgroundTask:
        """Run a function of the model between the steps of replies.

        Raises:
            ApiError: Too many tasks wait, or the server stops.
        """
        self._refuse_if_closing()
        if len(self._background_tasks) >= MAX_BACKGROUND_TASKS:
            raise _queue_full()
        task = BackgroundTask(work, api_error_of)
        self._background_tasks.append(task)
        self._slots[0].thread.wake()
        return task

    def close(self, patience_s: float) -> None:
        """End everything that runs or waits, then the threads."""
        finish = Finish("cancelled", error=shutting_down())
        for slot in self._slots:
            slot.thread.close(0.0)

        with self._assigning:  # From here on, no slot gets a task.
            while (waiting_task := self._queue.take()) is not None:
                waiting_task.end(finish)
            for slot in self._slots:
                running_task = slot.task
                if running_task is not None:
                    running_task.cancel()
                    if slot.thread.queue.take() is not None:
                        # The thread has not started with the task and will not.
                        running_task.end(finish)

        for background_task in list(self._background_tasks):
            background_task.end(shutting_down())
        self._slots[0].thread.close(patience_s)

    def forget(self) -> None:
        """Drop the references to the closed model, so that its memory can be freed."""
        self.model = None
        self.writer = None
        for slot in self._slots:
            slot.__dict__.pop("writer", None)

    def _refuse_if_closing(self) -> None:
        if self._is_closing:
            raise shutting_down()

    # ---- engine threads

    def _start(self) -> None:
        fulfil(self.opened, self._open)
        if self.writer is not None:
            self._assign()

    def _close_model(self) -> None:
        """Close the model unless another thread still computes with it."""
        if self.model is None:
            return
        if not all(slot.thread.close(OTHER_SLOTS_PATIENCE_S) for slot in self._slots[1:]):
            return
        if self.writer is not None:
            for slot in self._slots:
                slot.writer.states.close()
        self.model.close()

    def _open(self) -> None:
        settings = self._settings
        model: Any = None
        garbage.postpone()
        try:
            model = engine_access.open_model(settings, self._path)
            if settings.adapters:
                engine_access.use_adapters(model, settings.adapters)
            if model.config.is_encoder:
                # Compiles the kernels, and fails now if memory is short.
                model.embedder  # noqa: B018
            else:
                self._open_slots(model)
                self.writer = self._slots[0].writer
        except BaseException:
            if model is not None:
                model.close()
            raise
        finally:
            garbage.settle()
        self.model = model

    def _open_slots(self, model: Any) -> None:
        settings = self._settings
        # The chat comes before the session because it starts a process.
        chat = model.chat()
        session = model.session(
            settings.context_size or None,
            engine_access.kv_type_of(settings, model),
            default_limit=self._context_limit,
        )
        self._slots[0].writer = self._make_writer(
            LocalModel(model, session, chat, settings), self._advance_background_tasks
        )

        for _ in range(1, self._max_at_once or MAX_AT_ONCE):
            try:
                session = model.session(peer=session)
            except MemoryPlanError:
                if self._max_at_once:
                    raise
                break
            slot = Slot(WorkThread(1))
            slot.writer = self._make_writer(
                LocalModel(model, session, model.chat(), settings), lambda: None
            )
            slot.thread.start()
            self._slots.append(slot)

    def _make_writer(self, local: LocalModel, between_steps: Callable[[], object]) -> ReplyWriter:
        settings = self._settings
        files = engine_access.state_files(settings)
        states = SavedStates(
            _StatePlace(settings), files, local.model, local.session, saves_names=False
        )
        local.saved_after = states.tokens_after
        thinking = ThinkingMode.parse(engine_access.recall_thinking(settings, self._path))
        return ReplyWriter(
            local, thinking, between_steps, states, self._logged_notes, self._suffix_first
        )

    def _write(self, slot: Slot, task: ReplyTask) -> None:
        try:
            # ``close`` may have missed a task that was just assigned.
            if task.is_cancelled or self._is_closing:
                finish = Finish("cancelled")
            else:
                finish = slot.writer.write(task)
        except Cancelled:  # before anything was written
            finish = Finish("length" if task.is_superseded else "cancelled")
        except BaseException as error:
            # The thread must survive any bug; otherwise all clients would wait forever.
            finish = Finish("cancelled", error=api_error_of(error))
        finally:
            slot.writer.states.update()
            slot.task = None

        if finish.reason == "cancelled" and finish.error is None and self._is_closing:
            finish = Finish("cancelled", error=shutting_down())
        task.end(finish)
        self._assign()
        self._drop_old_states()

    def _drop_old_states(self) -> None:
        quota_bytes = self._settings.kv_states_quota_bytes
        now_s = time.monotonic()
        if quota_bytes and now_s - self._dropped_states_s >= DROP_STATES_PERIOD_S:
            self._dropped_states_s = now_s
            in_background(partial(drop_oldest_states, quota_bytes), "quota")

    def _advance_background_tasks(self) -> bool:
        """Run background tasks for one slice.

        Returns:
            Whether tasks are left.
        """
        model = self.model
        until_s = time.monotonic() + SLICE_S
        while model is not None and self._background_tasks and time.monotonic() < until_s:
            task = self._background_tasks.popleft()
            if not task.advance(model, until_s):
                self._background_tasks.append(task)
        return bool(self._background_tasks)


def _suitability(task: ReplyTask, slot: Slot) -> tuple[int, int]:
    """Return a sort key: how much of the request is cached in the slot, then how long ago the slot
    got its last task."""
    return slot.writer.count_cached(task.request), -slot.last_number


def _queue_full() -> ApiError:
    return unavailable("too many requests are waiting (try again later)", "queue_full")


def writes_no_text() -> ApiError:
    """Return the refusal of a request for text from an embedding model."""
    return ApiError(
        "this model writes no text (use it with /v1/embeddings)", code="unsupported_model"
    )


def shutting_down() -> ApiError:
    """Return the refusal of a request while the server stops."""
    return unavailable("the server is shutting down", "shutting_down")


def api_error_of(error: BaseException) -> ApiError:
    """Return the API error for an exception, both without their tracebacks.

    The client is told only the name of a bug; the log has the details.
    """
    api_error = without_trace(_convert_error(error))
    without_trace(error)
    return api_error


def _convert_error(error: BaseException) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, FormError):
        return form_api_error(error)
    if isinstance(error, Cancelled):
        return shutting_down()
    if isinstance(error, PictureRefusal):
        return ApiError(str(error), param="messages", code="image_error")
    if isinstance(error, TemplateError):
        return ApiError(str(error), param="messages", code="template_refuses")
    if isinstance(error, EngineError) or exit_code_of(error) is not None:
        return ApiError(line_of(error).removeprefix("jalopy: "), 500, code="engine_error")
    return ApiError(bug_line(error, " in the engine"), 500, code="internal_error")
