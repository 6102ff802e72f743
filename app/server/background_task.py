"""Short work between two steps of a reply, such as the tokens of a text: in slices, so that no
reply stops."""

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
"""How long a reply waits for such work between two of its tokens."""


class BackgroundTask:
    """One piece of work. It has a thread of its own, which runs only while the engine's thread
    waits for it.

    Args:
        work: is handed the model.
        error_of: what the future gets for an exception of the work.

    Attributes:
        future: has the result; who no longer wants it cancels it, or calls ``end``.
    """

    def __init__(
        self, work: Callable[[Any], Any], error_of: Callable[[BaseException], BaseException]
    ) -> None:
        self.future: Future[Any] = Future()
        self._work = work
        self._error_of = error_of
        self._goes_on = threading.Semaphore(0)
        self._rests = threading.Semaphore(0)
        self._until_s = 0.0
        self._has_begun = False

    def advance(self, model: Any, until_s: float) -> bool:
        """Work until a time of the monotonic clock, or until shortly after it; whether all is
        done."""
        if self.future.done():
            self._goes_on.release()
            return True
        self._until_s = until_s
        if self._has_begun:
            self._goes_on.release()
        else:
            self._has_begun = True
            threading.Thread(
                target=self._run, args=(model,), name="jalopy-aside", daemon=True
            ).start()
        self._rests.acquire()
        return self.future.done()

    def end(self, error: BaseException) -> None:
        """End it from any thread; a waiting caller gets the error."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
        self._goes_on.release()

    def _run(self, model: Any) -> None:
        try:
            with pausing(self._rest), suppress(InvalidStateError):
                self.future.set_result(self._work(model))
        except BaseException as error:
            with suppress(InvalidStateError):
                self.future.set_exception(self._error_of(error))
        finally:
            self._rests.release()

    def _rest(self) -> None:
        if time.monotonic() >= self._until_s:
            self._rests.release()
            self._goes_on.acquire()
        if self.future.done():
            raise Cancelled
