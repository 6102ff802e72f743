"""Short work on the model, such as counting tokens: it runs in slices between two steps of a reply,
so that replies never pause for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from engine.errors import Cancelled
from engine.tokenizer.pauses import pausing

SLICE_S = 0.02
"""Time that a reply waits for background tasks between two of its tokens."""


class BackgroundTask:
    """A piece of work in its own thread, which runs only while the engine thread waits for it.

    Args:
        work: Function of the model that returns the result.
        to_api_error: Converts an exception of the work into the one that the future gets.

    Attributes:
        future: Future of the result. A caller that no longer needs it cancels it or calls ``end``.
    """

    def __init__(
        self, work: Callable[[Any], Any], to_api_error: Callable[[BaseException], BaseException]
    ) -> None:
        self.future: Future[Any] = Future()
        self._work = work
        self._to_api_error = to_api_error
        self._may_run = threading.Semaphore(0)
        self._has_paused = threading.Semaphore(0)
        self._until_s = 0.0
        self._has_started = False

    def advance(self, model: Any, until_s: float) -> bool:
        """Work until shortly after a time of the monotonic clock.

        Returns:
            Whether the task is done.
        """
        if self.future.done():
            self._may_run.release()
            return True

        self._until_s = until_s
        if self._has_started:
            self._may_run.release()
        else:
            self._has_started = True
            threading.Thread(
                target=self._run, args=(model,), name="jalopy-background", daemon=True
            ).start()
        self._has_paused.acquire()
        return self.future.done()

    def end(self, error: BaseException) -> None:
        """End the task with an error for the waiting caller; any thread may call this."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
        self._may_run.release()

    def _run(self, model: Any) -> None:
        try:
            with pausing(self._pause), suppress(InvalidStateError):
                self.future.set_result(self._work(model))
        except BaseException as error:
            with suppress(InvalidStateError):
                self.future.set_exception(self._to_api_error(error))
        finally:
            self._has_paused.release()

    def _pause(self) -> None:
        if time.monotonic() >= self._until_s:
            self._has_paused.release()
            self._may_run.acquire()
        if self.future.done():
            raise Cancelled
