"""Ctrl-C at the terminal, which stops a reply first, and SIGINT from other processes, which exits.

A Python signal handler does not know the sender of a signal, but ``sigwaitinfo`` does. So a thread
waits for SIGINT and wakes the main thread with SIGUSR1.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from app.program import exit_codes

_REPEAT_S = 0.1


@contextlib.contextmanager
def foreign_sigint_exits() -> Iterator[None]:
    """Raise SystemExit(130) in the main thread if another process sends SIGINT.

    Ctrl-C at the terminal still calls the handler of SIGINT. Enter this context before threads are
    started, since they must inherit the blocked signal.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS: every SIGINT counts as Ctrl-C
        yield
        return
    main_id = threading.get_ident()
    received: signal.struct_siginfo | None = None

    def listen() -> None:
        nonlocal received
        while True:
            received = signal.sigwaitinfo({signal.SIGINT})
            # A signal just before a system call waits for that call, so it is sent repeatedly.
            while received is not None:
                signal.pthread_kill(main_id, signal.SIGUSR1)
                time.sleep(_REPEAT_S)

    def interrupt(_number: int, frame: FrameType | None) -> None:
        nonlocal received
        signal_info = received
        received = None
        if signal_info is None:
            return
        if signal_info.si_code <= 0:  # sent by a process
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
    """Call ``stop`` on the first Ctrl-C; a second one raises KeyboardInterrupt."""
    presses = 0

    def press(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt
        stop()

    old_handler = signal.getsignal(signal.SIGINT)
    if old_handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old_handler)
