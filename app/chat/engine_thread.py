"""The one thread that owns the engine where there is no screen.

The main thread only waits, so that signals are answered at once: while a kernel runs, Python runs no handler in the
thread that called it. Knows nothing of what it runs.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LOOK_S = 0.2


class EngineThread:
    """Run work in one daemon thread, in the order it comes."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Task[Any]] = queue.SimpleQueue()
        # A daemon: quitting must not wait for a kernel that is still being compiled.
        threading.Thread(target=self._serve, name="engine", daemon=True).start()

    def run(self, work: Callable[[], T], on_interrupt: Callable[[], None] | None = None) -> T:
        """Do the work and return its result, or raise its exception.

        Args:
            work: called in the engine's thread.
            on_interrupt: called for the first KeyboardInterrupt, to make the work end early; its result still counts.
                Without it, or the second time, the interrupt is raised here and the work is left behind.
        """
        task = _Task(work)
        while not task.done.is_set():
            try:
                self._work.put(task)  # again after an interrupt, which may have come before: it is done once
                # A system may hand the signal to another thread, which does not wake this one.
                while not task.done.wait(_LOOK_S):
                    pass
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                on_interrupt()
                on_interrupt = None
        return task.outcome()

    def _serve(self) -> None:
        while True:
            self._work.get().perform()


class _Task(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Event()

    def perform(self) -> None:
        if self.done.is_set():
            return
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]
