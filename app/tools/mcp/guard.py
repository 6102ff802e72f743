"""Guard process of one tool server: starts it, and ends it with all its descendants when Jalopy is
gone.

It runs as a script with the number of a pipe and the command of the server. Only Jalopy has the
writing end of the pipe: however Jalopy ends, the kernel closes it, and the guard reads the end of
the file. The guard imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

FAILED = b"\0"
"""Byte on standard output before the reason why the server does not start."""
_SET_DEATH_SIGNAL = 1
"""Option of ``prctl``: signal for this process when its parent ends."""
_SET_SUBREAPER = 36
"""Option of ``prctl``: orphans below this process become its children."""
_MAX_STDERR_BYTES = 4096
"""Number of bytes at the end of the server's standard error that are kept."""
_READ_BYTES = 1 << 16
_STDERR_PATIENCE_S = 0.3
"""Limit on waiting for the end of standard error, which a child of the server may hold open."""
_MAX_ROUNDS = 200
_ROUND_S = 0.005


def main() -> None:
    """Start the server and wait until it or Jalopy ends."""
    lifeline = int(sys.argv[1])
    # Descendants that leave their parent or the process group become children of this process.
    _set_process_option(_SET_SUBREAPER, 1)
    try:
        # The server is in this process group and has these pipes. Its standard error is read here,
        # so that it does not reach the terminal.
        server = subprocess.Popen(sys.argv[2:], stderr=subprocess.PIPE, preexec_fn=_die_with_guard)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        os.write(1, FAILED + reason.encode() + b"\n")
        sys.exit(127)

    # Only the server may hold the pipes: Jalopy must see when it closes them.
    null_device = os.open(os.devnull, os.O_RDWR)
    for pipe in (0, 1):
        os.dup2(null_device, pipe)
    threading.Thread(target=_wait_for_server, args=[server], daemon=True).start()
    while os.read(lifeline, 1):
        pass
    _kill_all()


def _wait_for_server(server: subprocess.Popen[bytes]) -> None:
    """Wait until the server ends, pass on the end of its standard error, and kill everything."""
    last_bytes = bytearray()
    reader = threading.Thread(target=_read_stderr, args=[server, last_bytes], daemon=True)
    reader.start()
    server.wait()
    reader.join(_STDERR_PATIENCE_S)
    with contextlib.suppress(OSError):
        os.write(2, bytes(last_bytes))  # It fits into an empty pipe.
    _kill_all()


def _read_stderr(server: subprocess.Popen[bytes], last_bytes: bytearray) -> None:
    """Read the server's standard error to its end, and keep the last bytes."""
    assert server.stderr is not None
    while piece := os.read(server.stderr.fileno(), _READ_BYTES):
        last_bytes += piece
        del last_bytes[:-_MAX_STDERR_BYTES]


def _die_with_guard() -> None:
    _set_process_option(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _set_process_option(option: int, value: int) -> None:
    """Set an option of this process, which only Linux has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_all() -> None:
    """Kill all descendants, also those that start meanwhile, and this process with its group."""
    for _ in range(_MAX_ROUNDS):
        process_ids = _descendants()
        if not process_ids:
            break
        for process_id in process_ids:
            try:
                os.kill(process_id, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(_ROUND_S)
    os.killpg(0, signal.SIGKILL)


def _descendants() -> set[int]:
    """Return the ids of living descendants from ``/proc``; empty without it, where killing the
    group must do."""
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return set()

    children: dict[int, list[int]] = {}
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))

    descendants: set[int] = set()
    pending = [os.getpid()]
    while pending:
        new_ids = [child for child in children.get(pending.pop(), ()) if child not in descendants]
        descendants.update(new_ids)
        pending += new_ids
    return descendants


if __name__ == "__main__":
    main()
