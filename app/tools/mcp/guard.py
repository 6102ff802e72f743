"""Starts one server of tools and ends it, with all its descendants, when the program that asked for
it is gone.

Run as a script with the number of a pipe and the server's command. Reading the pipe ends when its
writing end does, which is the program's alone: however that ends, the kernel closes it. Imports
nothing of the project.
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
"""Before the reason why the server does not start, on its standard output."""
_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
_MOST_WORDS_BYTES = 4096
"""Limit on what is kept of the server's standard error: its last bytes."""
_READ_BYTES = 1 << 16
_LAST_WORDS_S = 0.3
"""Limit on waiting for the last of them, which a child of the server may hold open."""
_MOST_ROUNDS = 200
_ROUND_S = 0.005


def main() -> None:
    """Watch over the server until either side ends."""
    lifeline = int(sys.argv[1])
    # what leaves its parent, or the group, becomes a child of this process
    _set_process(_SET_SUBREAPER, 1)
    try:
        # In this process's group, with its pipes. What it logs must not reach the terminal, and is
        # read here.
        server = subprocess.Popen(sys.argv[2:], stderr=subprocess.PIPE, preexec_fn=_end_with_guard)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        os.write(1, FAILED + reason.encode() + b"\n")
        sys.exit(127)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for pipe in (0, 1):  # the server's alone: an end of it must be seen
        os.dup2(nowhere, pipe)
    threading.Thread(target=_end_with, args=[server], daemon=True).start()
    while os.read(lifeline, 1):
        pass
    _end_all()


def _end_with(server: subprocess.Popen[bytes]) -> None:
    """Wait for the server's end, and end everything.

    The last of what it wrote to its standard error is passed on before.
    """
    words = bytearray()
    reader = threading.Thread(target=_read_words, args=[server, words], daemon=True)
    reader.start()
    server.wait()
    reader.join(_LAST_WORDS_S)
    with contextlib.suppress(OSError):
        os.write(2, bytes(words))  # fits into an empty pipe
    _end_all()


def _read_words(server: subprocess.Popen[bytes], words: bytearray) -> None:
    """Read the server's standard error until its end and keep the last bytes in ``words``."""
    assert server.stderr is not None
    while piece := os.read(server.stderr.fileno(), _READ_BYTES):
        words += piece
        del words[:-_MOST_WORDS_BYTES]


def _end_with_guard() -> None:
    _set_process(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _set_process(what: int, value: int) -> None:
    """Ask the kernel for something that only Linux has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def _end_all() -> None:
    """End every descendant, those that are born meanwhile too, and this process with its group."""
    for _ in range(_MOST_ROUNDS):
        found = _descendants()
        if not found:
            break
        for process_id in found:
            try:
                os.kill(process_id, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(_ROUND_S)
    os.killpg(0, signal.SIGKILL)


def _descendants() -> set[int]:
    """Return those that live, as ``/proc`` shows them; none without it, where ending the group must
    do."""
    children: dict[int, list[int]] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return set()
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        new = [one for one in children.get(waiting.pop(), ()) if one not in found]
        found.update(new)
        waiting += new
    return found


if __name__ == "__main__":
    main()
