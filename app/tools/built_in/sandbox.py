"""Process that runs Python code of a model: no files, no network, no other processes.

It runs as a script and imports nothing of the project. The modules that code may use are imported
first. Then limits apply, and a filter of the kernel (seccomp) that permits few system calls:
memory, clocks, and reading and writing of pipes that are open. ``open``, ``socket``, ``fork`` and
all others fail. If the filter cannot be installed, or does not hold, no code runs.

Standard input has the code. Standard output begins with ``READY`` or with the reason why no code
can run; then comes the output.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import importlib
import io
import os
import platform
import signal
import socket
import struct
import sys
import traceback

READY = b"+"
REFUSED = b"-"
MEMORY_BYTES = 512 << 20
CPU_S = 10
MAX_FRAMES = 4
"""Limit on the lines of code in an error."""
MODULES = (
    "abc", "array", "ast", "base64", "bisect", "calendar", "cmath", "collections",
    "collections.abc", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal",
    "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "html", "io", "itertools",
    "json", "keyword", "math", "numbers", "operator", "pprint", "queue", "random", "re", "secrets",
    "statistics", "string", "struct", "sys", "textwrap", "time", "types", "typing", "unicodedata",
    "uuid",
)  # fmt: skip
"""Modules that code may import."""
_ALSO_NEEDED = ("_strptime", "encodings.ascii", "encodings.idna", "encodings.latin_1", "locale")
"""Modules that functions of the others import when they are called."""
_SET_NO_NEW_PRIVILEGES = 38
_SET_SECCOMP = 22
_SET_DEATH_SIGNAL = 1
_FILTER_MODE = 2
_NOT_PERMITTED = 1
"""Error of forbidden system calls (EPERM)."""
_X32_BIT = 0x40000000
_ARCHITECTURES = {
    "x86_64": (
        0xC000003E,
        (
            0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 35, 39, 60, 96, 98, 100, 131,
            201, 202, 204, 219, 228, 229, 230, 231, 318,
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 124, 216, 233, 101, 172, 93,
            169, 165, 153, 132, 98, 123, 128, 113, 114, 115, 94, 278,
        ),
    ),
}  # fmt: skip
"""Number of each architecture in filters, and its numbers of the permitted system calls: read,
write, close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn,
sched_yield, mremap, madvise, nanosleep, getpid, exit, gettimeofday, getrusage, times, sigaltstack,
time, futex, sched_getaffinity, restart_syscall, clock_gettime, clock_getres, clock_nanosleep,
exit_group and getrandom (asm/unistd.h of Linux; aarch64 has no time)."""


class SandboxError(Exception):
    """Reason why this process cannot be isolated."""


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def main() -> None:
    """Isolate this process and run the code on standard input."""
    output = sys.stdout.buffer
    try:
        isolate()
    except Exception as error:  # After any error no code may run.
        output.write(REFUSED + str(error).encode())
        output.flush()
        return
    output.write(READY)
    output.flush()
    run_code(sys.stdin.buffer.read().decode("utf-8", "replace"))


def isolate() -> None:
    """Import the modules, limit this process and check that the limits hold.

    Raises:
        SandboxError: The system does not offer what is needed.
    """
    for name in (*MODULES, *_ALSO_NEEDED):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _limit_resources()
    _install_filter()
    _check_filter()
    sys.path.clear()
    sys.meta_path[:] = [_Refuser]


class _Refuser:
    """Finder that finds nothing and says what there is."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuse a module."""
        raise ModuleNotFoundError(
            f"No module named {name!r} in this sandbox; there are: {', '.join(MODULES)}", name=name
        )


def _limit_resources() -> None:
    import resource

    limits = {
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_CPU: CPU_S,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for limit, amount in limits.items():
        resource.setrlimit(limit, (amount, amount))


def _install_filter() -> None:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURES or struct.calcsize("P") != 8:
        raise SandboxError("this needs 64-bit Linux on x86 or ARM")
    architecture, calls = _ARCHITECTURES[machine]
    allow = 0x7FFF0000
    refuse = 0x00050000 | _NOT_PERMITTED
    kill = 0x80000000
    load = 0x20
    is_equal = 0x15
    is_at_least = 0x35
    answer = 0x06
    instructions = [
        (load, 0, 0, 4),  # the architecture of the call
        (is_equal, 1, 0, architecture),
        (answer, 0, 0, kill),
        (load, 0, 0, 0),  # the number of the call
        (is_at_least, len(calls), 0, _X32_BIT),
    ]
    for index, number in enumerate(calls):
        instructions.append((is_equal, len(calls) - index, 0, number))
    instructions += [(answer, 0, 0, refuse), (answer, 0, 0, allow)]
    array = (_Instruction * len(instructions))(*(_Instruction(*row) for row in instructions))
    program = _Program(len(instructions), array)
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.prctl(
        _SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0
    ):
        raise SandboxError(f"the kernel refuses a filter: {os.strerror(ctypes.get_errno())}")


def _check_filter() -> None:
    """Check that files, the network and processes are out of reach."""
    attempts = (
        lambda: os.open("/", os.O_RDONLY),
        lambda: os.mkdir("/tmp/jalopy-sandbox"),
        socket.socket,
        os.fork,
        lambda: os.kill(os.getppid(), 0),
    )
    for attempt in attempts:
        try:
            attempt()
        except PermissionError:
            continue
        except OSError as error:
            raise SandboxError(f"the filter does not hold: {error}") from None
        raise SandboxError("the filter does not hold")


def run_code(code: str) -> None:
    """Run code, and print the value of its last line if that is an expression."""
    names = {"__name__": "__main__", "__builtins__": builtins}
    stream = io.TextIOWrapper(sys.stdout.buffer, "utf-8", "backslashreplace", line_buffering=True)
    sys.stdout = sys.stderr = stream
    sys.stdin = io.StringIO()
    try:
        tree = ast.parse(code, "<code>")
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        exec(compile(tree, "<code>", "exec"), names)
        if last is not None:
            value = eval(compile(last, "<code>", "eval"), names)
            if value is not None:
                print(repr(value))
    except SystemExit:
        pass
    except MemoryError:
        print("MemoryError: the limit is 512 MB")
    except BaseException:
        print(_error_text())
    with contextlib.suppress(BaseException):
        stream.flush()
    os._exit(0)


def _error_text() -> str:
    """Return the error with the lines of the code that led to it, without frames of modules."""
    kind, error, frames = sys.exc_info()
    lines = [
        f"line {frame.lineno}, in {frame.name}"
        for frame in traceback.extract_tb(frames)
        if frame.filename == "<code>"
    ]
    lines[:-MAX_FRAMES] = ["..."] if len(lines) > MAX_FRAMES else []
    return "\n".join([*lines, *traceback.format_exception_only(kind, error)]).rstrip()


if __name__ == "__main__":
    main()
