"""The small parent process that survives what the program cannot: death by a signal.

It is forked off before numba, Textual or any thread exists, does nothing but wait for signals, and
holds no lock. When the child is killed (a truncated model file: SIGBUS; no memory: SIGKILL; a bug:
SIGSEGV), it puts the terminal back in order, says so in one line and returns an exit code. Imports
nothing heavy.

Signals are collected by ``sigwaitinfo``, so no handler can interrupt anything, and their sender is
known: what the terminal sends goes to the whole process group and has reached the child already;
what another process sends to this one is passed on.
"""

import contextlib
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable

from app.program import exit_codes, notices
from app.program.refusals import refuse, say

_Terminal = tuple[int, list[int | list[bytes | int]]]
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_WATCHED = frozenset({*_PASSED_ON, signal.SIGCHLD, signal.SIGCONT})

GRACE_S = 4.0
"""How long the child may take to end after SIGTERM or SIGHUP, or may go on saving without a
parent."""

STANDS_S = 0.1
"""How long a stopped or continued child is watched before it counts as standing still."""

_DEATHS: dict[int, tuple[int, str]] = {
    signal.SIGBUS: (
        exit_codes.IO_ERROR,
        (
            "the model file became unreadable while in use (SIGBUS): was it changed, or its disk "
            "removed?"
        ),
    ),
    signal.SIGILL: (
        exit_codes.UNSUPPORTED,
        "this CPU lacks an instruction the program used (SIGILL): please report it",
    ),
    signal.SIGKILL: (
        exit_codes.NO_MEMORY,
        (
            "killed by the system (SIGKILL), most likely for want of memory: try a smaller model "
            "or --ctx"
        ),
    ),
    signal.SIGQUIT: (exit_codes.INTERRUPTED, ""),
    **{number: (code, "") for number, code in exit_codes.BY_SIGNAL.items()},
}

# Synchronised output off, all kinds of mouse reporting, focus reports, bracketed paste, in-band
# resize, Kitty keyboard flags popped (each screen has its own), alternate screen off, line wrap on,
# cursor on, colours plain.
_LEAVE_SCREEN = (
    "\x1b[?2026l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2048l"
    "\x1b[<u\x1b[?1049l\x1b[?7h\x1b[?25h\x1b[0m"
)


def supervise(work: Callable[[], int], uses_screen: bool) -> int:
    """Do the work in a child process and return its exit code; never dies by a signal itself, save
    SIGKILL.

    Args:
        work: what the program does; returns the exit code.
        uses_screen: whether it takes over the terminal, so that a killed child leaves modes to
            undo.
    """
    terminal = _terminal_modes()
    _flush()
    # What nohup has set to be ignored is dropped by the system only while it is not blocked.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        dropped = {signal.SIGHUP}
    else:
        dropped = set()
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED - dropped)
    # inherited as ignored, it would never be reported
    old_handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    reading = lifeline = child_id = -1
    with contextlib.suppress(OSError):  # no handle is left, or no process
        # the parent's end is open as long as the parent lives, however it dies
        reading, lifeline = os.pipe()
        child_id = os.fork()
    if child_id <= 0:
        signal.signal(
            signal.SIGCHLD, old_handler if old_handler is not signal.SIG_IGN else signal.SIG_DFL
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        if child_id < 0:
            return work()  # fork failed: better without a parent than not at all
        os.close(lifeline)
        os._exit(_finish(work, reading))
    os.close(reading)
    notices.take_all()  # the child has them too, and shows them
    try:
        status, sent = _Watch(child_id).wait()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        signal.signal(signal.SIGCHLD, old_handler)
        os.close(lifeline)
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    return _clean_up(os.WTERMSIG(status), sent, terminal, uses_screen)


def _finish(work: Callable[[], int], parents_end: int) -> int:
    """Do the work in the child; threads that still compute do not keep it from ending."""
    try:
        with contextlib.suppress(RuntimeError, MemoryError):  # the system refuses a thread
            threading.Thread(
                target=_end_with_parent, args=[parents_end], name="lifeline", daemon=True
            ).start()
        code = work()
    except KeyboardInterrupt:  # once more, while the first one was obeyed
        code = exit_codes.INTERRUPTED
    except BaseException as error:
        code = refuse(error)
    _flush()
    return code


def _end_with_parent(parents_end: int) -> None:
    """Wait for the parent's death; then end as by SIGTERM, or at once where that does not come to
    anything.

    A disk may not answer, or a terminal take nothing more.
    """
    # Signals are for the main thread, which has to wake up for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.read(parents_end, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(exit_codes.TERMINATED)


def _flush() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


class _Watch:
    """Waits for one child, passing on what only this process was told."""

    def __init__(self, child_id: int) -> None:
        self._child_id = child_id
        self._sent: int | None = None
        self._deadline_s = float("inf")

    def wait(self) -> tuple[int, int | None]:
        """Return the child's wait status, and which ending signal it was given, if any."""
        while True:
            status = self._look()
            if status is not None:
                return status, self._sent
            received = self._next_signal()
            if received is None:
                os.kill(self._child_id, signal.SIGKILL)
            elif received.si_signo in _PASSED_ON:
                self._pass_on(received)

    def _next_signal(self) -> signal.struct_siginfo | None:
        if self._deadline_s == float("inf"):
            return signal.sigwaitinfo(_WATCHED)
        return signal.sigtimedwait(_WATCHED, max(0.0, self._deadline_s - time.monotonic()))

    def _look(self) -> int | None:
        """Return the child's status if it ended; stop together with it if it stopped, so that the
        shell notices."""
        child_id, status = os.waitpid(self._child_id, os.WNOHANG | os.WUNTRACED)
        while child_id and os.WIFSTOPPED(status):
            child_id, changed = self._next_change()
            if child_id:
                status = changed
                continue
            os.kill(os.getpid(), signal.SIGSTOP)
            # The shell continues the whole group, but one who continued this process alone meant
            # the child as well. A second SIGCONT would make Textual set up its screen twice, so
            # only a child that stays stopped gets one.
            child_id, status = self._next_change()
            if child_id == 0:
                os.kill(self._child_id, signal.SIGCONT)
        if child_id and not os.WIFCONTINUED(status):
            return status
        return None

    def _next_change(self) -> tuple[int, int]:
        """Return what becomes of the stopped child within ``STANDS_S``; (0, 0) if it stays stopped.

        One who stops and continues both processes, as cpulimit does, continues one after the other.
        """
        deadline_s = time.monotonic() + STANDS_S
        while True:
            child_id, status = os.waitpid(self._child_id, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            left_s = deadline_s - time.monotonic()
            if child_id or left_s <= 0:
                return child_id, status
            signal.sigtimedwait({signal.SIGCHLD}, left_s)

    def _pass_on(self, received: signal.struct_siginfo) -> None:
        number = received.si_signo
        from_process = received.si_code <= 0
        if number in _ENDING:
            self._sent = number
            self._deadline_s = min(self._deadline_s, time.monotonic() + GRACE_S)
        if from_process or number in _ENDING:
            os.kill(self._child_id, number)


def _terminal_modes() -> _Terminal | None:
    """Return the handle and the modes of the terminal that a standard stream is, before the child
    takes it over."""
    for handle in (0, 1, 2):
        with contextlib.suppress(termios.error, OSError):
            return handle, termios.tcgetattr(handle)
    return None


def _restore(terminal: _Terminal, uses_screen: bool) -> None:
    """Put the modes back and leave the screen; a terminal that is gone is no error."""
    # A background process that touches the terminal would be stopped.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(termios.error, OSError):
        termios.tcsetattr(terminal[0], termios.TCSAFLUSH, terminal[1])
        if uses_screen:
            screen = next(filter(os.isatty, (1, 2, 0)), None)
        else:
            screen = None
        if screen is not None:
            os.write(screen, _LEAVE_SCREEN.encode("ascii"))


def _clean_up(number: int, sent: int | None, terminal: _Terminal | None, uses_screen: bool) -> int:
    if terminal:
        _restore(terminal, uses_screen)
    if sent is not None:
        return _DEATHS[sent][0]
    unknown = (
        f"internal error: the program was ended by signal {number} ({signal.strsignal(number)}): "
        f"please report it"
    )
    code, reason = _DEATHS.get(number, (exit_codes.INTERNAL, unknown))
    if reason:
        say(f"jalopy: {reason}")
    return code
