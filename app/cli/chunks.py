"""Text read chunk by chunk in the engine thread, with progress; Ctrl-C keeps the results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from app.backend.work_thread import start_work_thread
from app.cli.output import ProgressLine
from app.text.figures import count, whole_seconds

if TYPE_CHECKING:
    from engine import Session

T = TypeVar("T")


class ChunkReading(Generic[T]):
    """Progress and result of reading a text chunk by chunk.

    Attributes:
        sessions: engine sessions that read; add each when it is opened.
        n_done: chunks that are read.
        n_chunks: chunks of the text; 0 before reading begins.
        seconds: time since reading began.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.progress = ProgressLine()
        self.sessions: list[Session] = []
        self._is_stopped = threading.Event()
        self._result: T | None = None
        self.n_done = 0
        self.n_chunks = 0
        self.seconds = 0.0

    def run(self, work: Callable[[ChunkReading[T]], Iterator[T]]) -> T | None:
        """Run ``work`` in the engine thread until it ends or the user presses Ctrl-C.

        Returns:
            The result after the last chunk that was read; None if there is none.
        """

        def read() -> None:
            for result in work(self):
                self._result = result

        try:
            start_work_thread().run(read, self._stop)
        finally:
            self.progress.clear()
        return self._result

    def _stop(self) -> None:
        if not self.sessions:
            raise KeyboardInterrupt
        self._is_stopped.set()
        for session in self.sessions:
            session.cancel()

    def follow(
        self, results: Iterable[T], n_chunks: int, describe: Callable[[T], str] = lambda result: ""
    ) -> Iterator[T]:
        """Yield the result after each chunk and show progress, until the reading is stopped.

        Args:
            describe: returns the text that the progress line shows for a result.
        """
        from engine.errors import Cancelled

        started_s = self._clock()
        self.n_chunks = n_chunks
        self.progress.show(f"chunk 1 of {count(n_chunks)}")
        with suppress(Cancelled):
            for result in results:
                self.seconds = self._clock() - started_s
                self.n_done += 1
                remaining_s = self.seconds * (n_chunks - self.n_done) / self.n_done
                if remaining_s:
                    time_left = f", about {whole_seconds(remaining_s)} left"
                else:
                    time_left = ""
                number = count(min(self.n_done + 1, n_chunks))
                self.progress.show(
                    f"chunk {number} of {count(n_chunks)}{describe(result)}{time_left}"
                )
                yield result
                if self._is_stopped.is_set():
                    return

    @property
    def is_complete(self) -> bool:
        """Whether all chunks are read."""
        return self.n_done == self.n_chunks

    @property
    def stopped_words(self) -> str:
        """Return how many chunks were read before the stop; "" if all were read."""
        if self.is_complete:
            return ""
        return f"stopped after {count(self.n_done)} of {count(self.n_chunks)} chunks: "
