"""The child process that inputs run in: what crashes, hangs or eats memory takes only the child
along.

The parent writes an input with its length before it; the child answers with one line of JSON.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from tests.programs.fuzz.new_lines import ROOT, NewLines
from tests.programs.fuzz.target import CostFault, Fault, Target, Watch, kind_of
from tests.programs.fuzz.targets import load

MOST_DATA_BYTES = 4 << 30
"""Limit on the child's memory: beyond it, MemoryError is a fault."""
STARTING_PATIENCE_S = 300.0
_READY = b"ready\n"
_LENGTH = struct.Struct("<I")
_NOT_INHERITED = (
    "HF_",
    "HUGGING_FACE",
    "SSL_CERT",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "JALOPY_",
)
_KEPT = ("JALOPY_CACHE_DIR",)


@dataclass(frozen=True)
class Result:
    """Outcome of an input.

    Attributes:
        outcome: in a few words; of a fault, what distinguishes it from others.
        fault: what did not hold, with its details; "" where everything did.
        seconds: wall time.
        peak_bytes: see ``Watch``.
        n_new_lines: lines of the program that no input before it reached.
    """

    outcome: str
    fault: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    n_new_lines: int = 0


def execute(
    target: Target, data: bytes, lines: NewLines | None = None, enforces: bool = True
) -> Result:
    """Run one input here, in a directory of its own."""
    started_s = time.monotonic()
    watch = Watch(enforces)
    n_before = len(lines.seen) if lines else 0
    outcome, fault = _outcome(target, data, lines, watch)
    # watching the lines costs time as well
    if fault and lines is not None and isinstance(fault, CostFault):
        watch = Watch(enforces)
        outcome, fault = _outcome(target, data, None, watch)
    n_new = len(lines.seen) - n_before if lines else 0
    description = _told(fault) if fault is not None else ""
    return Result(outcome, description, time.monotonic() - started_s, watch.peak_bytes, n_new)


def _outcome(
    target: Target, data: bytes, lines: NewLines | None, watch: Watch
) -> tuple[str, Exception | None]:
    with tempfile.TemporaryDirectory(prefix="jalopy-fuzz-") as name, _watched(lines):
        try:
            return target.run(data, Path(name), watch), None
        except Fault as error:
            return f"FAULT {kind_of(str(error))}", error
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return (
                f"FAULT {type(error).__name__} at {Path(where.filename).name}:{where.lineno}",
                error,
            )


@contextmanager
def _watched(lines: NewLines | None) -> Iterator[None]:
    if lines is None:
        yield
    else:
        with lines.watched():
            yield


def _told(error: Exception) -> str:
    if isinstance(error, Fault):
        return str(error)
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)[-12:])


class Worker:
    """Runs inputs of one target in a child process, which is started again after one that ended
    it."""

    def __init__(self, name: str) -> None:
        self._target = load(name)
        self._name = name
        self._child: subprocess.Popen[bytes] | None = None
        self._home = tempfile.TemporaryDirectory(prefix="jalopy-fuzz-home-")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._home.cleanup()

    def run(self, data: bytes) -> Result:
        """Run one input; that it ended or hung the process is a result like others."""
        if self._child is None:
            self._child = self._start()
        child = self._child
        started_s = time.monotonic()
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(OSError):
            child.stdin.write(_LENGTH.pack(len(data)) + data)
            child.stdin.flush()
        readable, _, _ = select.select([child.stdout], [], [], self._target.hang_s)
        line = child.stdout.readline() if readable else b""
        if line.endswith(b"\n"):
            return Result(**json.loads(line))
        seconds = time.monotonic() - started_s
        if readable:
            code = child.wait(60)
            self._end()
            ending = f"signal {-code}" if code < 0 else f"exit code {code}"
            return Result(f"FAULT ended with {ending}", f"the process ended with {ending}", seconds)
        self._end()
        return Result("FAULT hung", f"no answer for {self._target.hang_s:g} s", seconds)

    def _start(self) -> subprocess.Popen[bytes]:
        environ = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT or not name.upper().startswith(_NOT_INHERITED)
        }
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
            environ[name] = str(Path(self._home.name) / name.lower())
        command = [sys.executable, "-m", "tests.programs.fuzz.worker", self._name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen(command, cwd=ROOT, env=environ, start_new_session=True, **pipes)
        assert child.stdout is not None
        readable, _, _ = select.select([child.stdout], [], [], STARTING_PATIENCE_S)
        if not readable or child.stdout.readline() != _READY:
            child.kill()
            child.wait()
            raise RuntimeError(f"the process for {self._name} does not start")
        return child

    def _end(self) -> None:
        child = self._child
        self._child = None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        child.wait()


def serve(name: str) -> None:
    """Answer the parent until it is gone."""
    _limit_memory()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # what the program prints is no answer
    target = load(name)
    lines = NewLines(target.source)
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(nowhere, 0)
    answers.write(_READY)
    while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
        data = requests.read(_LENGTH.unpack(head)[0])
        answers.write(json.dumps(asdict(execute(target, data, lines))).encode() + b"\n")


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not a Unix
        return
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA_BYTES, MOST_DATA_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def mutated(target: Target, rng: Random, corpus: list[bytes]) -> bytes:
    """A new input from one of the corpus; the newest are changed most often."""
    n = len(corpus)
    base = corpus[rng.randrange(max(0, n - 16), n)] if rng.random() < 0.3 else rng.choice(corpus)
    return target.mutate(rng, base, corpus)


if __name__ == "__main__":
    serve(sys.argv[1])
