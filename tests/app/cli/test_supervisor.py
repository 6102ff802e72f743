"""The parent process on a pseudo-terminal, with children that end in every way."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.program import exit_codes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 120.0

# What a screen program does to a terminal, then what the test asks for.
CHILD = """
import os, signal, sys, termios, tty
from app.cli import supervisor
supervisor.GRACE_S = {grace_s}
def work():
    modes = termios.tcgetattr(0)
    tty.setraw(0)
    os.write(1, b"\\x1b[?1049h\\x1b[?1003h\\x1b[?2004h\\x1b[?25l")
    {setup}
    os.write(1, b"READY")
    {act}
sys.exit(supervisor.supervise(work, uses_screen=True))
"""
WAIT = "signal.pause()"
STAYS = "while True: signal.pause()"


class Terminal:
    """Pseudo-terminal with a process that leads its own session, as a job of a shell does."""

    def __init__(self, program: str) -> None:
        self.control, self.line = pty.openpty()
        self.before = termios.tcgetattr(self.line)
        self.output = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdin=self.line,
            stdout=self.line,
            stderr=self.line,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )

    def wait_for(self, text: bytes) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while text not in self.output:
            if not self.read(deadline_s - time.monotonic()):
                raise AssertionError(f"{text!r} did not come: {self.output!r}")

    def read(self, patience_s: float) -> bool:
        readable, _, _ = select.select([self.control], [], [], max(0.0, patience_s))
        if readable:
            self.output += os.read(self.control, 65536)
        return bool(readable)

    def end(self) -> int:
        """Wait for the process and return its exit status as subprocess counts: negative for a
        signal."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            self.read(0.05)
        status = self.process.wait(1)
        while self.read(0):
            pass
        return status

    def child_id(self) -> int:
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(tasks.read_text().split()[0])

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.control)
        os.close(self.line)


@pytest.fixture
def opened() -> Iterator[list[Terminal]]:
    terminals: list[Terminal] = []
    yield terminals
    for terminal in terminals:
        terminal.close()


def start(
    opened: list[Terminal], act: str = WAIT, setup: str = "pass", grace_s: float = 4.0
) -> Terminal:
    terminal = Terminal(CHILD.format(act=act, setup=setup, grace_s=grace_s))
    opened.append(terminal)
    terminal.wait_for(b"READY")
    return terminal


def printed_text(terminal: Terminal) -> str:
    """Return what follows the escape sequences after the child's death."""
    return terminal.output.rpartition(b"\x1b[0m")[2].decode()


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGBUS, exit_codes.IO_ERROR, "SIGBUS"),
        (signal.SIGSEGV, exit_codes.INTERNAL, "killed by signal 11 (Segmentation fault)"),
        (signal.SIGILL, exit_codes.UNSUPPORTED, "SIGILL"),
        (signal.SIGKILL, exit_codes.NO_MEMORY, "SIGKILL"),
    ],
)
def test_a_killed_child_leaves_a_clean_terminal_and_a_line(
    opened: list[Terminal], number: signal.Signals, code: int, word: str
) -> None:
    terminal = start(opened, act=f"os.kill(os.getpid(), {int(number)})")
    assert terminal.end() == code
    assert termios.tcgetattr(terminal.line) == terminal.before
    for sequence in (
        b"\x1b[?1049l",
        b"\x1b[?1003l",
        b"\x1b[?2004l",
        b"\x1b[?7h",
        b"\x1b[?25h",
        b"\x1b[<u",
    ):
        assert sequence in terminal.output
    assert printed_text(terminal).startswith("jalopy: ")
    assert word in printed_text(terminal)
    assert printed_text(terminal).endswith(". What you typed is saved\r\n")
    assert printed_text(terminal).count("\n") == 1


def test_an_exit_code_is_passed_on_silently(opened: list[Terminal]) -> None:
    terminal = start(opened, act="termios.tcsetattr(0, termios.TCSANOW, modes); return 65")
    assert terminal.end() == 65
    assert terminal.output.endswith(b"READY")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_reaches_the_child(
    opened: list[Terminal], number: signal.Signals
) -> None:
    terminal = start(opened, setup=f"signal.signal({int(number)}, lambda *_: os._exit(7))")
    os.kill(terminal.process.pid, number)
    assert terminal.end() == 7


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, exit_codes.TERMINATED),
        (signal.SIGHUP, exit_codes.HANGUP),
        (signal.SIGQUIT, exit_codes.INTERRUPTED),
    ],
)
def test_a_child_killed_by_a_forwarded_signal_gives_its_code(
    opened: list[Terminal], number: signal.Signals, code: int
) -> None:
    terminal = start(opened, setup=f"signal.signal({int(number)}, signal.SIG_DFL)")
    os.kill(terminal.process.pid, number)
    assert terminal.end() == code
    assert printed_text(terminal) == ""
    assert termios.tcgetattr(terminal.line) == terminal.before


def test_nohup_protects_from_hangups() -> None:
    program = """
import os, signal, sys
from functools import partial
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from app.cli.dispatch import guard
from app.cli.supervisor import supervise
def work():
    os.kill(os.getpid(), signal.SIGHUP)
    told = []
    signal.signal(signal.SIGHUP, lambda *_: told.append("hangup"))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.kill(os.getppid(), signal.SIGHUP)
    os.kill(os.getppid(), signal.SIGTERM)  # comes after it, wherever it goes
    signal.sigwait({signal.SIGTERM})
    return len(told)
sys.exit(supervise(partial(guard, work), uses_screen=False))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (exit_codes.OK, b"")


def test_a_child_that_ignores_sigterm_is_killed_in_the_end(opened: list[Terminal]) -> None:
    terminal = start(
        opened, act=STAYS, setup="signal.signal(signal.SIGTERM, signal.SIG_IGN)", grace_s=0.2
    )
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.end() == exit_codes.TERMINATED
    assert termios.tcgetattr(terminal.line) == terminal.before


def wait_for_state(process_id: int, states: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] not in states:
        assert time.monotonic() < deadline_s, f"process never was in state {states}"
        time.sleep(0.005)


COUNTS_CONTINUES = "signal.signal(signal.SIGCONT, lambda *_: os.write(1, b'CONTINUED'))"


@pytest.mark.parametrize("to_group", [True, False])
def test_a_stopped_child_stops_the_job_and_sigcont_wakes_both(
    opened: list[Terminal], to_group: bool
) -> None:
    terminal = start(opened, act=STAYS, setup=COUNTS_CONTINUES)
    parent = terminal.process.pid
    child = terminal.child_id()
    os.kill(child, signal.SIGSTOP)  # what Textual does on ctrl+z
    wait_for_state(parent, "T")
    if to_group:
        os.killpg(parent, signal.SIGCONT)  # what the shell does on fg
    else:
        os.kill(parent, signal.SIGCONT)
    terminal.wait_for(b"CONTINUED")
    wait_for_state(parent, "S")
    os.kill(child, signal.SIGSTOP)
    wait_for_state(parent, "T")
    os.killpg(parent, signal.SIGCONT)
    deadline = terminal.output.count(b"CONTINUED") + 1
    while terminal.output.count(b"CONTINUED") < deadline:
        assert terminal.read(DEADLINE_S)
    os.kill(child, signal.SIGKILL)
    assert terminal.end() == exit_codes.NO_MEMORY
    assert terminal.output.count(b"CONTINUED") == 2


def test_the_parent_does_not_stop_if_the_child_continues(opened: list[Terminal]) -> None:
    # cpulimit stops and continues processes one after the other: who is continued first sees the
    # other stand.
    terminal = start(opened, act=STAYS)
    parent = terminal.process.pid
    child = terminal.child_id()
    stood = []
    for _ in range(3):  # a busy machine may let the parent stand once
        for process in (parent, child):
            os.kill(process, signal.SIGSTOP)
            wait_for_state(process, "T")
        os.kill(parent, signal.SIGCONT)
        time.sleep(0.03)
        os.kill(child, signal.SIGCONT)
        time.sleep(0.5)
        state = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[0]
        stood.append(state == "T")
        os.killpg(parent, signal.SIGCONT)
        wait_for_state(parent, "S")
    assert not all(stood)
    os.kill(child, signal.SIGKILL)
    assert terminal.end() == exit_codes.NO_MEMORY


def test_the_child_ends_when_its_parent_is_killed(opened: list[Terminal]) -> None:
    terminal = start(
        opened,
        setup="signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'ORPHAN'), os._exit(0)))",
    )
    os.kill(terminal.process.pid, signal.SIGKILL)
    terminal.wait_for(b"ORPHAN")


@pytest.mark.parametrize(
    ("work", "line"),
    [
        (
            "lambda: os.kill(os.getpid(), signal.SIGSEGV)",
            b"jalopy: internal error: killed by signal 11",
        ),
        ("lambda: 1 // 0", b"jalopy: internal error: ZeroDivisionError"),
    ],
)
def test_without_a_terminal_one_line_has_no_escape_sequence(work: str, line: bytes) -> None:
    program = (
        f"import os, signal, sys\nfrom app.cli.supervisor import "
        f"supervise\nsys.exit(supervise({work}, True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (exit_codes.INTERNAL, b"")
    assert done.stderr.startswith(line)
    assert b"\x1b" not in done.stderr
    assert done.stderr.count(b"\n") == 1


# A child as the program is one, which says where it is and then does not end by itself.
ORPHAN = """
import os, signal, sys, threading, time
from functools import partial
from app.cli import supervisor
from app.cli.dispatch import guard
from app.cli.supervisor import supervise
supervisor.GRACE_S = 0.5
def ready():
    os.write(1, b"READY %d\\n" % os.getpid())
def work():
    {act}
sys.exit(supervise(partial(guard, work), uses_screen=False))
"""
ORPHANS = {
    "idle": "ready(); signal.pause()",
    "saves to a disk that does not answer": """
    os.fsync = lambda handle: threading.Event().wait()
    try:
        ready(); signal.pause()
    finally:
        os.fsync(1)""",
    "blocks SIGTERM": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); ready(); signal.pause()",
    "compiles": """
    import numba
    from app.backend.work_thread import start_work_thread
    def compile_on():
        ready()
        while True:
            numba.njit(lambda x: x + 1)(1)
    signal.signal(signal.SIGTERM, lambda *_: None)
    start_work_thread().run(compile_on)""",
}


def is_gone(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("state", "stops"), [*((state, False) for state in ORPHANS), ("idle", True)]
)
def test_a_child_is_gone_soon_after_its_parent_was_killed(state: str, stops: bool) -> None:
    program = ORPHAN.format(act=ORPHANS[state])
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert parent.stdout is not None
    child = int(parent.stdout.readline().split()[1])
    try:
        if stops:
            os.kill(child, signal.SIGSTOP)
            wait_for_state(parent.pid, "T")
        parent.kill()
        parent.wait()
        if stops:
            os.kill(child, signal.SIGCONT)
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_gone(child):
            assert time.monotonic() < deadline_s, "it computes on for no one"
            time.sleep(0.02)
    finally:
        if not is_gone(child):
            os.kill(child, signal.SIGKILL)
        assert parent.stdin is not None
        parent.stdin.close()
        parent.stdout.close()


@pytest.mark.smoke
@pytest.mark.parametrize("second_signal", ["SIGTERM", "SIGHUP"])
def test_a_second_signal_does_not_interrupt_the_saving(second_signal: str) -> None:
    act = f"""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        os.kill(os.getpid(), signal.{second_signal})
        os.write(1, b"SAVED")"""
    done = run_orphan(act)
    assert (done.returncode, done.stdout, done.stderr) == (exit_codes.TERMINATED, b"SAVED", b"")


def test_ctrl_c_pressed_twice_is_no_internal_error() -> None:
    act = """
    import app.cli.dispatch
    def once_more(*_):
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    app.cli.dispatch.refuse = once_more
    raise ValueError"""
    done = run_orphan(act)
    assert (done.returncode, done.stdout, done.stderr) == (exit_codes.INTERRUPTED, b"", b"")


def run_orphan(act: str) -> subprocess.CompletedProcess[bytes]:
    program = ORPHAN.format(act=act)
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=240, check=False
    )
