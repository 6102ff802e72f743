"""A text read chunk by chunk in the engine's thread: how far it is, and a stop that keeps what is
known. No Textual."""

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
    """One reading; ``sessions``: those that read, as they are opened."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.progress = ProgressLine()
        self.sessions: list[Session] = []
        self._is_stopped = threading.Event()
        self._found: T | None = None
        self.n_done = self.n_chunks = 0
        self.seconds = 0.0

    def run(self, work: Callable[[ChunkReading[T]], Iterator[T]]) -> T | None:
        """Read; Ctrl-C ends it.

        Returns what is known after the last chunk that is done, None before the first.
        """

        def read() -> None:
            for found in work(self):
                self._found = found

        try:
            start_work_thread().run(read, self._stop)
        finally:
            self.progress.clear()
        return self._found

    def _stop(self) -> None:
        if not self.sessions:
            raise KeyboardInterrupt
        self._is_stopped.set()
        for session in self.sessions:
            session.cancel()

    def follow(
        self, found: Iterable[T], n_chunks: int, told: Callable[[T], str] = lambda one: ""
    ) -> Iterator[T]:
        """Yield what is found after each chunk, until it is stopped.

        ``told``: what is shown of that.
        """
        from engine.errors import Cancelled

        started_s = self._clock()
        self.n_chunks = n_chunks
        self.progress.show(f"chunk 1 of {count(n_chunks)}")
        with suppress(Cancelled):
            for one in found:
                self.seconds = self._clock() - started_s
                self.n_done = self.n_done + 1
                left_s = self.seconds * (n_chunks - self.n_done) / self.n_done
                if left_s:
                    left = f", about {whole_seconds(left_s)} left"
                else:
                    left = ""
                at = f"chunk {count(min(self.n_done + 1, n_chunks))} of {count(n_chunks)}"
                self.progress.show(f"{at}{told(one)}{left}")
                yield one
                if self._is_stopped.is_set():
                    return

    @property
    def is_whole(self) -> bool:
        """Whether all chunks are read."""
        return self.n_done == self.n_chunks

    @property
    def stopped_words(self) -> str:
        """Say how far it came; "" where that is all."""
        if self.is_whole:
            return ""
        return f"stopped after {count(self.n_done)} of {count(self.n_chunks)} chunks: "
