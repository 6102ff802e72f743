"""Refusals by the system (memory, threads, files of the program): one line that names it, and 71 or
74."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from app.program import exit_codes, refusals
from engine.machine import address_space, host

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
CHAT = ("chat", "--plain", "starter")


def chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__context__ = cause
    return error


NUMPY = (
    "\n\nIMPORTANT: PLEASE READ THIS\n\nOriginal error was: libopenblas.so: "
    "failed to map segment from shared object\n"
)
NO_THREAD = RuntimeError("can't start new thread")
MEMORY = {
    "MemoryError": MemoryError(),
    "ENOMEM": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "numpy": ImportError(NUMPY),
    "llvmlite": chained(
        OSError("Could not find/load shared object file"), OSError("x.so: failed to map segment")
    ),
    "loader": ImportError("x.so: cannot allocate memory in static TLS block"),
}


@pytest.mark.parametrize("error", MEMORY.values(), ids=MEMORY)
def test_memory_is_what_a_limit_on_the_address_space_refuses(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(address_space, "limit_bytes", lambda: 400 * MIB)
    assert refusals.refuse(error) == exit_codes.NO_MEMORY
    line = capsys.readouterr().err
    assert line.startswith(
        "jalopy: the limit of 400 MiB on the address space (ulimit -v) is too small: about "
        "1,024 MiB"
    )
    assert line.count("\n") == 1
    assert len(line) <= refusals.MAX_LINE_CHARS
    monkeypatch.setattr(address_space, "limit_bytes", lambda: None)
    assert refusals.refuse(error) == exit_codes.NO_MEMORY
    assert capsys.readouterr().err.startswith("jalopy: not enough memory")


@pytest.mark.parametrize(
    "error",
    [
        NO_THREAD,
        chained(ValueError("x"), NO_THREAD),
        RuntimeError("cannot join thread before it is started"),
    ],
)
def test_a_refused_thread_names_the_limit_on_processes(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(address_space, "limit_bytes", lambda: None)
    assert refusals.refuse(error) == exit_codes.NO_MEMORY
    assert "ulimit -u" in capsys.readouterr().err


def test_a_library_that_cannot_be_read_is_an_io_error(capsys: pytest.CaptureFixture[str]) -> None:
    words = "libllvm.so: cannot read file data: Input/output error"
    assert refusals.refuse(ImportError(f"numpy says a lot\n{words}")) == exit_codes.IO_ERROR
    assert capsys.readouterr().err == f"jalopy: a library cannot be loaded: {words}\n"


def test_an_import_that_fails_for_another_reason_is_a_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refusals.refuse(ImportError("cannot import name 'x' from 'y'")) == exit_codes.INTERNAL


# ---- real limits


def jalopy(*arguments: str, program: str = "", limit: int = 0) -> subprocess.CompletedProcess[str]:
    start = f"{program}\nimport sys\nsys.argv = {['jalopy', *arguments]!r}\n"
    start += "from app.__main__ import main\nsys.exit(main())"
    bound = partial(resource.setrlimit, resource.RLIMIT_AS, (limit, limit)) if limit else None
    return subprocess.run(
        [sys.executable, "-c", start], cwd=ROOT, preexec_fn=bound, input="hi\n",
        capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mebibytes", "command"),
    [(150, ("run", "starter", "-p", "hi")), (250, CHAT), (330, ("run", "starter", "-p", "hi"))],
)
def test_a_small_address_space_is_one_line_that_names_it(
    mebibytes: int, command: tuple[str, ...]
) -> None:
    done = jalopy(*command, limit=mebibytes * MIB)
    assert (done.returncode, done.stdout) == (exit_codes.NO_MEMORY, ""), done.stderr
    assert (
        f"the limit of {mebibytes} MiB on the address space (ulimit -v) is too small" in done.stderr
    )
    assert done.stderr.count("\n") == 1


REFUSE_THREADS = """
import threading
true_start, n_started = threading._start_new_thread, 0
def start(*given, **named):
    global n_started
    n_started += 1
    if n_started > {most}:
        raise RuntimeError("can't start new thread")
    return true_start(*given, **named)
threading._start_new_thread = start
"""


@pytest.mark.parametrize(
    ("command", "most"), [(("run", "starter", "-p", "hi"), 1), (CHAT, 0), (("doctor",), 0)]
)
def test_refused_threads_are_one_line(command: tuple[str, ...], most: int) -> None:
    done = jalopy(*command, program=REFUSE_THREADS.format(most=most))
    assert (done.returncode, done.stdout) == (exit_codes.NO_MEMORY, ""), done.stderr
    assert "the system allows no more threads" in done.stderr
    assert done.stderr.count("\n") == 1


REFUSE_FORK = """
import errno, os
def fork():
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
os.fork = fork
"""


@pytest.mark.smoke
def test_a_refused_fork_costs_the_supervisor_and_nothing_else() -> None:
    done = jalopy("sessions", program=REFUSE_FORK)
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")


FAIL_IMPORT = """
import sys
class Fails:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {name!r}:
            raise {error}
sys.meta_path.insert(0, Fails)
"""


@pytest.mark.parametrize(
    ("name", "error", "code", "words"),
    [
        *((name, "OSError(5, 'Input/output error')", 74, "Input/output error")
          for name in ("app.cli.dispatch", "llvmlite")),
        *((name, "MemoryError()", 71, "not enough memory") for name in ("app.cli.arguments",
                                                                        "numpy")),
    ],
)  # fmt: skip
def test_an_import_that_the_system_spoils_is_one_line(
    name: str, error: str, code: int, words: str
) -> None:
    done = jalopy(*CHAT, program=FAIL_IMPORT.format(name=name, error=error))
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert done.stderr.startswith("jalopy: ")
    assert done.stderr.count("\n") == 1


def test_numpys_threads_are_not_started() -> None:
    program = (
        "import atexit, os\ndel os.environ['OPENBLAS_NUM_THREADS']\n"
        "atexit.register(lambda: print(os.environ.get('OPENBLAS_NUM_THREADS')))"
    )
    assert jalopy("sessions", program=program).stdout.splitlines()[-1] == "1"


def test_a_sandbox_that_hides_the_affinity_leaves_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.machine.sensors.low_power import is_weak_machine

    def refuse(_: int) -> set[int]:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
    assert host.allowed_cpus() == list(range(os.cpu_count() or 1))
    assert is_weak_machine() in (True, False)
