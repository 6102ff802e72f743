"""Ctrl+c at the terminal, which is answered in two steps, told from another process's SIGINT, which
ends the program.

Python's handlers do not learn who sent a signal, ``sigwaitinfo`` does: a thread takes SIGINT, and
wakes the main thread with a signal of its own.
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
    """Inside, in the main thread: SystemExit(130) where another process sent SIGINT; else what
    SIGINT's handler does.

    Enter it before threads are started: they inherit that SIGINT is not theirs.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS, Windows: each one counts as ctrl+c
        yield
        return
    main_id = threading.get_ident()
    received: signal.struct_siginfo | None = None

    def listen() -> None:
        nonlocal received
        while True:
            received = signal.sigwaitinfo({signal.SIGINT})
            # Again until it is heard: one that comes just before a system call waits for that call
            # to end.
            while received is not None:
                signal.pthread_kill(main_id, signal.SIGUSR1)
                time.sleep(_AGAIN_S)

    def interrupt(_number: int, frame: FrameType | None) -> None:
        nonlocal received
        heard = received
        received = None
        if heard is None:
            return
        if heard.si_code <= 0:
            raise SystemExit(exit_codes.INTERRUPTED)
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)

    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    old_handler = signal.signal(signal.SIGUSR1, interrupt)
    try:
        try:
            threading.Thread(target=listen, name="interrupts", daemon=True).start()
        except (RuntimeError, MemoryError):  # the system refuses another thread
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        yield
    finally:
        signal.signal(signal.SIGUSR1, old_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


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
