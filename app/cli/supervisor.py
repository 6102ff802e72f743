"""A small parent process that cleans up when the program is killed by a signal.

The program runs in a child, which is forked before numba, Textual or any thread exists. The parent
only waits for signals and holds no lock. When the child is killed (SIGBUS: a truncated model file;
SIGKILL: no memory; SIGSEGV: a bug), the parent restores the terminal, prints one line and returns
an exit code.

``sigwaitinfo`` collects the signals, so no handler interrupts anything and the sender is known. A
signal from the terminal has already reached the child; a signal from another process is passed on.
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
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
_TERMINATING = (signal.SIGTERM, signal.SIGHUP)
_WATCHED = frozenset({*_FORWARDED, signal.SIGCHLD, signal.SIGCONT})

GRACE_S = 4.0
"""Seconds for the child to end after SIGTERM, SIGHUP or the death of its parent."""

STOP_S = 0.1
"""Seconds after which a stopped child that was not continued counts as stopped."""

_DEATHS: dict[int, tuple[int, str]] = {
    signal.SIGBUS: (
        exit_codes.IO_ERROR,
        (
            "the model file became unreadable while in use (SIGBUS). Was it changed, or its disk "
            "removed?"
        ),
    ),
    signal.SIGILL: (
        exit_codes.UNSUPPORTED,
        "this CPU lacks an instruction that the program used (SIGILL). Please report this",
    ),
    signal.SIGKILL: (
        exit_codes.NO_MEMORY,
        (
            "killed by the system (SIGKILL), probably out of memory. Try a smaller model or a "
            "smaller --ctx"
        ),
    ),
    signal.SIGQUIT: (exit_codes.INTERRUPTED, ""),
    **{number: (code, "") for number, code in exit_codes.BY_SIGNAL.items()},
}

_KEPT = "What you typed is saved"
"""Said of a chat, which saves its drafts while they are typed."""

# Turns off synchronised output, mouse reports, focus reports, bracketed paste, in-band resize, the
# Kitty keyboard flags and the alternate screen; turns on line wrap and the cursor; resets colours.
_LEAVE_SCREEN = (
    "\x1b[?2026l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2048l"
    "\x1b[<u\x1b[?1049l\x1b[?7h\x1b[?25h\x1b[0m"
)


def supervise(work: Callable[[], int], uses_screen: bool) -> int:
    """Do the work in a child process and return its exit code.

    Args:
        work: runs the program and returns its exit code.
        uses_screen: whether the program takes over the terminal, so that the parent must restore
            the terminal if the child is killed.
    """
    terminal = _terminal_modes()
    _flush()
    # A signal that nohup ignores must not be blocked, or it would stay pending.
    ignored = set()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        ignored = {signal.SIGHUP}
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED - ignored)
    # SIGCHLD would not be reported if it were inherited as ignored.
    old_handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    read_end = write_end = child_id = -1
    with contextlib.suppress(OSError):  # too many open files or processes
        # The write end closes when the parent dies, whatever the cause.
        read_end, write_end = os.pipe()
        child_id = os.fork()
    if child_id <= 0:
        signal.signal(
            signal.SIGCHLD, old_handler if old_handler is not signal.SIG_IGN else signal.SIG_DFL
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        if child_id < 0:
            return work()  # fork failed, so the program runs without a parent
        os.close(write_end)
        os._exit(_run_child(work, read_end))
    os.close(read_end)
    notices.take_all()  # the child has a copy and prints them
    try:
        status, sent = _Watch(child_id).wait()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        signal.signal(signal.SIGCHLD, old_handler)
        os.close(write_end)
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    return _clean_up(os.WTERMSIG(status), sent, terminal, uses_screen)


def _run_child(work: Callable[[], int], read_end: int) -> int:
    """Do the work in the child and return its exit code."""
    try:
        with contextlib.suppress(RuntimeError, MemoryError):  # the system refuses a thread
            threading.Thread(
                target=_end_with_parent, args=[read_end], name="lifeline", daemon=True
            ).start()
        code = work()
    except KeyboardInterrupt:  # a second Ctrl-C during the clean-up after the first
        code = exit_codes.INTERRUPTED
    except BaseException as error:
        code = refuse(error)
    _flush()
    return code


def _end_with_parent(read_end: int) -> None:
    """Wait until the parent dies, then end the child with SIGTERM.

    If that takes too long, since a disk or a terminal hangs, the child exits at once.
    """
    # Signals must wake the main thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.read(read_end, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(exit_codes.TERMINATED)


def _flush() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


class _Watch:
    """Wait for the child; signals that only the parent received are passed on."""

    def __init__(self, child_id: int) -> None:
        self._child_id = child_id
        self._sent: int | None = None
        self._deadline_s = float("inf")

    def wait(self) -> tuple[int, int | None]:
        """Return (wait status of the child, terminating signal that was sent to it or None)."""
        while True:
            status = self._poll_child()
            if status is not None:
                return status, self._sent
            received = self._next_signal()
            if received is None:
                os.kill(self._child_id, signal.SIGKILL)
            elif received.si_signo in _FORWARDED:
                self._pass_on(received)

    def _next_signal(self) -> signal.struct_siginfo | None:
        if self._deadline_s == float("inf"):
            return signal.sigwaitinfo(_WATCHED)
        return signal.sigtimedwait(_WATCHED, max(0.0, self._deadline_s - time.monotonic()))

    def _poll_child(self) -> int | None:
        """Return the wait status if the child ended; stop together with a stopped child."""
        child_id, status = os.waitpid(self._child_id, os.WNOHANG | os.WUNTRACED)
        while child_id and os.WIFSTOPPED(status):
            child_id, changed = self._next_change()
            if child_id:
                status = changed
                continue
            os.kill(os.getpid(), signal.SIGSTOP)
            # The shell continues the whole group, but another process may continue the parent
            # alone. A second SIGCONT would make Textual set up its screen twice, so only a child
            # that is still stopped gets one.
            child_id, status = self._next_change()
            if child_id == 0:
                os.kill(self._child_id, signal.SIGCONT)
        if child_id and not os.WIFCONTINUED(status):
            return status
        return None

    def _next_change(self) -> tuple[int, int]:
        """Return the next (process id, status) of the stopped child within ``STOP_S``.

        Returns (0, 0) if the child stays stopped. Programs such as cpulimit continue parent and
        child one after the other.
        """
        deadline_s = time.monotonic() + STOP_S
        while True:
            child_id, status = os.waitpid(self._child_id, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            remaining_s = deadline_s - time.monotonic()
            if child_id or remaining_s <= 0:
                return child_id, status
            signal.sigtimedwait({signal.SIGCHLD}, remaining_s)

    def _pass_on(self, received: signal.struct_siginfo) -> None:
        number = received.si_signo
        from_process = received.si_code <= 0
        if number in _TERMINATING:
            self._sent = number
            self._deadline_s = min(self._deadline_s, time.monotonic() + GRACE_S)
        if from_process or number in _TERMINATING:
            os.kill(self._child_id, number)


def _terminal_modes() -> _Terminal | None:
    """Return the file descriptor and the modes of the terminal; None if there is no terminal."""
    for handle in (0, 1, 2):
        with contextlib.suppress(termios.error, OSError):
            return handle, termios.tcgetattr(handle)
    return None


def _restore(terminal: _Terminal, uses_screen: bool) -> None:
    """Restore the modes of the terminal and leave the screen; ignore a terminal that is gone."""
    # SIGTTOU would stop a background process here.
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
        f"internal error: killed by signal {number} ({signal.strsignal(number)}). "
        "Please report this"
    )
    code, reason = _DEATHS.get(number, (exit_codes.INTERNAL, unknown))
    if reason and uses_screen:
        reason += f". {_KEPT}"
    if reason:
        say(f"jalopy: {reason}")
    return code
