"""The server's engine: opens the model, answers one request after the other, and does short work between."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from app.chat import opening
from app.chat.answer_form import FormError
from app.chat.host import EngineHost, LineFullError, Work
from app.chat.local_model import LocalModel
from app.chat.saved_states import SavedStates
from app.conversations.quota import drop_oldest_states
from app.program import garbage, paths
from app.program.background import in_background
from app.program.refusals import bug_line, exit_code_of, line_of
from app.program.settings import Settings
from app.server.answer import Answering
from app.server.answer_form import api_error
from app.server.api_error import ApiError, unavailable
from app.server.aside import SLICE_S, Aside
from app.server.job import Ended, Job
from engine.errors import Cancelled, EngineError, TemplateError
from engine.prompt.thinking_mode import ThinkingMode

DROP_STATES_PERIOD_S = 60.0
"""Seconds between two checks of the saved states against their quota."""
MOST_ASIDES = 32
"""Limit on the pieces of short work that wait."""


class _Place:
    """Where the conversation of the requests is: in no file, but its states are kept if conversations are."""

    def __init__(self, settings: Settings) -> None:
        self.state_path = paths.states_dir() if settings.save_conversations == "on" else None
        self.state_trouble = ""


class ServedEngine:
    """The thread, and the line of those who wait for it.

    Args:
        settings: how it is opened, and what holds where a request sets nothing.
        on_opened: called in the thread when the model is open, or with the exception that prevented it.

    Attributes:
        served: the open model, of which other threads may read what does not change; None before.
        running: the request that is answered; None for none.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        most_waiting: int,
        on_opened: Callable[[Answering | BaseException], object],
    ) -> None:
        self._path, self._settings, self._on_opened = path, settings, on_opened
        self._host = EngineHost(most_waiting, self._do_asides, self._end)
        self._works: dict[Job, Work] = {}
        """The work that waits, by its request."""
        self._asides: deque[Aside] = deque()
        self._dropped_states_s = 0.0
        self.served: Answering | None = None
        self.running: Job | None = None

    # ---- any thread

    @property
    def n_waiting(self) -> int:
        """Requests that wait."""
        return len(self._works)

    def start(self) -> None:
        """Open the model, then answer."""
        self._host.submit(self._begin)
        self._host.start()

    def ask(self, job: Job) -> None:
        """Have a request answered when its turn comes. Raises ApiError: too many wait, or the server ends."""
        self._refuse_closed()
        work = self._works[job] = partial(self._answer, job)
        try:
            self._host.submit(work, job.peer)
        except LineFullError:
            del self._works[job]
            raise _queue_full() from None

    def drop(self, job: Job) -> None:
        """Drop a request whose client has left."""
        job.cancel()
        self._leave(job, Ended("cancelled"))

    def _leave(self, job: Job, ended: Ended) -> None:
        """End a request that still waits."""
        work = self._works.get(job)
        if work is not None and self._host.line.leave(work):
            self._works.pop(job, None)
            job.end(ended)

    def aside(self, work: Callable[[Any], Any]) -> Aside:
        """Do short work, which is handed the model, between two steps of what runs. Raises ApiError: as ``ask``."""
        self._refuse_closed()
        if len(self._asides) >= MOST_ASIDES:
            raise _queue_full()
        aside = Aside(work, _error_of)
        self._asides.append(aside)
        self._host.wake()
        return aside

    def close(self, patience_s: float) -> None:
        """End what runs and what waits, then the thread."""
        self._host.close(0.0)
        running = self.running
        if running is not None:
            running.cancel()
        for job in list(self._works):
            self._leave(job, Ended("cancelled", error=_ending()))
        for aside in list(self._asides):
            aside.end(_ending())
        self._host.close(patience_s)

    def _refuse_closed(self) -> None:
        if self._host.is_closing:
            raise _ending()

    # ---- the thread

    def _begin(self) -> None:
        try:
            self.served = self._open()
        except BaseException as error:
            self._on_opened(error)
        else:
            self._on_opened(self.served)

    def _end(self) -> None:
        if self.served is not None:
            self.served.states.close()
            self.served.local.model.close()

    def _open(self) -> Answering:
        settings = self._settings
        garbage.postpone()
        try:
            model = opening.open_model(settings, self._path)
            chat = model.chat()  # before the session: it starts a process
            session = model.session(settings.context_size or None, opening.kv_type_of(settings, model))
        finally:
            garbage.settle()
        states = SavedStates(_Place(settings), opening.state_files(settings), model, session, notes=False)
        thinking = ThinkingMode.parse(opening.recall_thinking(settings, self._path))
        return Answering(LocalModel(model, session, chat, settings), thinking, self._do_asides, states)

    def _answer(self, job: Job) -> None:
        served = self.served
        assert served is not None
        self.running = job
        self._works.pop(job, None)
        if self._host.is_closing:  # which may not have seen this one
            job.cancel()
        try:
            is_dropped = job.is_cancelled and not self._host.is_closing
            ended = Ended("cancelled") if is_dropped else served.answer(job)
            if ended.reason == "cancelled" and self._host.is_closing:
                ended = Ended("cancelled", error=_ending())
        except Cancelled:  # before anything was computed
            ended = Ended("cancelled", error=_ending() if self._host.is_closing else None)
        except BaseException as error:  # the thread must outlive any bug, or every client would wait forever
            ended = Ended("cancelled", error=_error_of(error))
        finally:
            self.running = None
            served.states.note_progress()
        job.end(ended)
        self._drop_old_states()

    def _drop_old_states(self) -> None:
        quota_bytes, now_s = self._settings.kv_states_quota_bytes, time.monotonic()
        if quota_bytes and now_s - self._dropped_states_s >= DROP_STATES_PERIOD_S:
            self._dropped_states_s = now_s
            in_background(partial(drop_oldest_states, quota_bytes), "quota")

    def _do_asides(self) -> bool:
        """Work at short work for a slice; whether more of it waits."""
        served, until_s = self.served, time.monotonic() + SLICE_S
        while served is not None and self._asides and time.monotonic() < until_s:
            aside = self._asides.popleft()
            if not aside.advance(served.local.model, until_s):
                self._asides.append(aside)
        return bool(self._asides)


def _queue_full() -> ApiError:
    return unavailable("too many requests wait (try again later)", "queue_full")


def _ending() -> ApiError:
    return unavailable("the server ends", "shutting_down")


def _error_of(error: BaseException) -> ApiError:
    """Return what a client is told; a bug goes to the log and is only named."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, FormError):
        return api_error(error)
    if isinstance(error, Cancelled):
        return _ending()
    if isinstance(error, TemplateError):
        return ApiError(str(error), param="messages", code="template_refuses")
    if isinstance(error, EngineError) or exit_code_of(error) is not None:
        return ApiError(line_of(error).removeprefix("jalopy: "), 500, code="engine_error")
    return ApiError(bug_line(error, " in the engine"), 500, code="internal_error")
