"""The engine's thread of the server: opens the model, answers one request after the other, does short work between.

A plain daemon thread: a compilation cannot be cancelled, and must not hold up the end of the program.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from app.chat import opening
from app.chat.answer_form import FormError
from app.chat.saved_states import SavedStates
from app.conversations.quota import drop_oldest_states
from app.program import garbage, paths
from app.program.background import in_background
from app.program.refusals import bug_line, exit_code_of, line_of
from app.program.settings import Settings
from app.server.answer import Answering, ServedConversation
from app.server.answer_form import api_error
from app.server.api_error import ApiError, unavailable
from app.server.aside import SLICE_S, Aside
from app.server.job import Ended, Job
from engine.errors import Cancelled, EngineError, TemplateError
from engine.prompt.thinking_mode import ThinkingMode

T = TypeVar("T")

DROP_STATES_PERIOD_S = 60.0
"""Seconds between two checks of the saved states against their quota."""
MOST_ASIDES = 32
"""Limit on the pieces of short work that wait."""


class WaitingLine(Generic[T]):
    """A queue that serves its peers in turn, each one's items in their order. Any thread may call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._peers.values()))

    def join(self, peer: str, item: T) -> None:
        """Wait after what this peer has sent before. Raises ApiError: too many wait."""
        with self._lock:
            if sum(map(len, self._peers.values())) >= self._most:
                raise _queue_full()
            self._peers.setdefault(peer, deque()).append(item)

    def leave(self, item: T) -> bool:
        """Stop waiting; False where the item no longer waits."""
        with self._lock:
            for peer, items in self._peers.items():
                if item in items:
                    items.remove(item)
                    if not items:
                        del self._peers[peer]
                    return True
        return False

    def take(self) -> T | None:
        """Return whose turn it is, None where no one waits; the peer goes after the others."""
        with self._lock:
            if not self._peers:
                return None
            peer, items = self._peers.popitem(last=False)
            item = items.popleft()
            if items:
                self._peers[peer] = items
            return item


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
        self._line: WaitingLine[Job] = WaitingLine(most_waiting)
        self._asides: deque[Aside] = deque()
        self._wake = threading.Event()
        self._is_closing = False
        self._model: Any = None
        self._states: SavedStates
        self._dropped_states_s = 0.0
        self.served: Answering | None = None
        self.running: Job | None = None
        self._thread = threading.Thread(target=self._run, name="jalopy-engine", daemon=True)

    # ---- any thread

    @property
    def n_waiting(self) -> int:
        """Requests that wait."""
        return len(self._line)

    def start(self) -> None:
        """Open the model, then answer."""
        self._thread.start()

    def ask(self, job: Job) -> None:
        """Have a request answered when its turn comes. Raises ApiError: too many wait, or the server ends."""
        self._refuse_closed()
        self._line.join(job.peer, job)
        self._wake.set()

    def drop(self, job: Job) -> None:
        """Drop a request whose client has left."""
        job.cancel()
        if self._line.leave(job):
            job.end(Ended("cancelled"))

    def aside(self, work: Callable[[Any], Any]) -> Aside:
        """Do short work, which is handed the model, between two steps of what runs. Raises ApiError: as ``ask``."""
        self._refuse_closed()
        if len(self._asides) >= MOST_ASIDES:
            raise _queue_full()
        aside = Aside(work, _error_of)
        self._asides.append(aside)
        self._wake.set()
        return aside

    def close(self, patience_s: float) -> None:
        """End what runs and what waits, then the thread."""
        self._is_closing = True
        running = self.running
        if running is not None:
            running.cancel()
        while (job := self._line.take()) is not None:
            job.end(Ended("cancelled", error=_ending()))
        for aside in list(self._asides):
            aside.end(_ending())
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def _refuse_closed(self) -> None:
        if self._is_closing:
            raise _ending()

    # ---- the thread

    def _run(self) -> None:
        try:
            self.served = answering = self._open()
        except BaseException as error:
            self._on_opened(error)
            return
        self._on_opened(answering)
        while not self._is_closing:
            self._wake.wait()
            self._wake.clear()
            while not self._is_closing:
                self._do_asides()
                job = self._line.take()
                if job is not None:
                    self._answer(answering, job)
                elif not self._asides:
                    break
        self._states.close()
        self._model.close()

    def _open(self) -> Answering:
        settings = self._settings
        garbage.postpone()
        try:
            self._model = model = opening.open_model(settings, self._path)
            conversation = ServedConversation(model.chat(), model.tokenizer)  # before the session: it starts a process
            session = model.session(settings.context_size or None, opening.kv_type_of(settings, model))
        finally:
            garbage.settle()
        self._states = SavedStates(_Place(settings), opening.state_files(settings), model, session, notes=False)
        thinking = ThinkingMode.parse(opening.recall_thinking(settings, self._path))
        return Answering(model, session, conversation, settings, thinking, self._step, self._states)

    def _answer(self, answering: Answering, job: Job) -> None:
        self.running = job
        if self._is_closing:  # which may not have seen this one
            job.cancel()
        try:
            is_dropped = job.is_cancelled and not self._is_closing
            ended = Ended("cancelled") if is_dropped else answering.answer(job)
            if ended.reason == "cancelled" and self._is_closing:
                ended = Ended("cancelled", error=_ending())
        except Cancelled:  # before anything was computed
            ended = Ended("cancelled", error=_ending() if self._is_closing else None)
        except BaseException as error:  # the thread must outlive any bug, or every client would wait forever
            ended = Ended("cancelled", error=_error_of(error))
        finally:
            self.running = None
            self._states.note_progress()
        job.end(ended)
        self._drop_old_states()

    def _step(self) -> None:
        """Between two steps of the computation."""
        self._do_asides()
        self._states.note_progress()

    def _drop_old_states(self) -> None:
        quota_bytes, now_s = self._settings.kv_states_quota_bytes, time.monotonic()
        if quota_bytes and now_s - self._dropped_states_s >= DROP_STATES_PERIOD_S:
            self._dropped_states_s = now_s
            in_background(partial(drop_oldest_states, quota_bytes), "quota")

    def _do_asides(self) -> None:
        until_s = time.monotonic() + SLICE_S
        while self._asides and time.monotonic() < until_s:
            aside = self._asides.popleft()
            if not aside.advance(self._model, until_s):
                self._asides.append(aside)


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
