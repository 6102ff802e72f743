"""Starts one server of tools and ends it, with all its children, when the program that asked for it is gone.

Run as a script with the number of a pipe and the server's command. Reading the pipe ends when its writing end does,
which is the program's alone: however that ends, the kernel closes it. Imports nothing of the project.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Watch over the server until either side ends."""
    lifeline = int(sys.argv[1])
    try:
        server = subprocess.Popen(sys.argv[2:])  # in this process's group, with its pipes
    except OSError as error:
        os.write(1, b"!" + (error.strerror or type(error).__name__).encode() + b"\n")
        sys.exit(127)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for pipe in (0, 1):  # the server's alone: an end of it must be seen
        os.dup2(nowhere, pipe)
    threading.Thread(target=_end_with, args=[server], daemon=True).start()
    while os.read(lifeline, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _end_with(server: subprocess.Popen[bytes]) -> None:
    server.wait()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
