"""Ctrl+c at the terminal, which is answered in two steps, told from another process's SIGINT, which ends the program.

Python's handlers do not learn who sent a signal, ``sigwaitinfo`` does: a thread takes SIGINT, and wakes the main thread
with a signal of its own.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from app.program import exit_codes

_AGAIN_S = 0.1


@contextlib.contextmanager
def told_apart() -> Iterator[None]:
    """Inside, in the main thread: SystemExit(130) where another process sent SIGINT; else what SIGINT's handler does.

    Enter it before threads are started: they inherit that SIGINT is not theirs.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS, Windows: each one counts as ctrl+c
        yield
        return
    listener = _Listener(threading.get_ident())
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    old_handler = signal.signal(signal.SIGUSR1, listener.interrupt)
    try:
        try:
            threading.Thread(target=listener.listen, name="interrupts", daemon=True).start()
        except (RuntimeError, MemoryError):  # the system refuses another thread
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        yield
    finally:
        signal.signal(signal.SIGUSR1, old_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


class _Listener:
    def __init__(self, main_id: int) -> None:
        self._main_id = main_id
        self._received: signal.struct_siginfo | None = None

    def listen(self) -> None:
        while True:
            self._received = signal.sigwaitinfo({signal.SIGINT})
            # Again until it is heard: one that comes just before a system call waits for that call to end.
            while self._received is not None:
                signal.pthread_kill(self._main_id, signal.SIGUSR1)
                time.sleep(_AGAIN_S)

    def interrupt(self, _number: int, frame: FrameType | None) -> None:
        received, self._received = self._received, None
        if received is None:
            return
        if received.si_code <= 0:
            raise SystemExit(exit_codes.INTERRUPTED)
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)


@contextlib.contextmanager
def interrupt_stops(stop: Callable[[], object]) -> Iterator[None]:
    """Let the first Ctrl-C stop what runs, and a second one end the program as usual."""
    presses = 0

    def press(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt
        stop()

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN if before is signal.SIG_IGN else press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
