"""The thread that owns the engine in commands without a screen.

The main thread only waits, so that signals are answered at once: while a kernel runs, Python runs no handler in the
thread that called it. Knows nothing of what it runs.
"""

import queue
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

from app.program.background import fulfil, in_background

T = TypeVar("T")

_LOOK_S = 0.2


class EngineThread:
    """Run work in one daemon thread, in the order it comes: quitting does not wait for a kernel that is compiled."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        in_background(self._serve, "engine")

    def run(self, work: Callable[[], T], on_interrupt: Callable[[], None] | None = None) -> T:
        """Do the work and return its result, or raise its exception.

        Args:
            on_interrupt: called for the first KeyboardInterrupt, to make the work end early; its result still counts.
                Without it, or the second time, the interrupt is raised here and the work is left.
        """
        answer: Future[T] = Future()
        while not answer.done():
            try:
                # Again after an interrupt, which may have come before it was in the queue: it is done once.
                self._work.put(partial(_do_once, answer, work))
                # A system may hand the signal to another thread, which does not wake this one.
                while not wait([answer], _LOOK_S).done:
                    pass
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                on_interrupt()
                on_interrupt = None
        return answer.result()

    def _serve(self) -> None:
        while True:
            self._work.get()()


def _do_once(answer: Future[T], work: Callable[[], T]) -> None:
    if not answer.done():
        fulfil(answer, work)
