"""The child's side of the supervisor: soon after the parent was killed the child ends, whatever it does.

A pipe whose writing end is the parent's alone: reading it ends when the parent does, however that died. A thread waits
for that, asks the program to end as by SIGTERM, and ends the process where that does not come to anything: a disk that
does not answer, a terminal that takes nothing more. While the parent lives, it is the parent that kills in the end.
"""

import contextlib
import os
import signal
import threading
import time

from app.program import exit_codes

GRACE_S = 4.0
"""How long the child may go on saving without a parent."""


class Lifeline:
    """Made before the fork; then each side says which one it is."""

    def __init__(self) -> None:
        self._parent_id = os.getpid()
        try:
            self._reading, self._writing = os.pipe()
        except OSError:  # no handle left: the kernel's signal has to do
            self._reading = self._writing = -1

    def hold(self) -> None:
        """This is the parent: the child lives while this end is open."""
        self._reading = _closed(self._reading)

    def let_go(self) -> None:
        """The parent stops watching."""
        self._reading, self._writing = _closed(self._reading), _closed(self._writing)

    def watch(self) -> None:
        """This is the child: end with the parent from now on."""
        self._writing = _closed(self._writing)
        is_told = _ask_for_a_signal()
        if os.getppid() != self._parent_id:
            os._exit(exit_codes.TERMINATED)
        if self._reading >= 0:
            with contextlib.suppress(RuntimeError, MemoryError):  # no thread left, either
                threading.Thread(target=self._wait, args=[is_told], name="lifeline", daemon=True).start()

    def _wait(self, is_told: bool) -> None:
        # Signals are for the main thread, which has to wake up for them.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while os.read(self._reading, 1):
            pass
        if not is_told:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(exit_codes.TERMINATED)


def _ask_for_a_signal() -> bool:
    """Let the kernel send SIGTERM when the parent dies (Linux), even where no thread can wait for that."""
    set_parent_death_signal = 1
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError, MemoryError):
        return False


def _closed(handle: int) -> int:
    if handle >= 0:
        os.close(handle)
    return -1
