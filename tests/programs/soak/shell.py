"""Stands for the shell that a user starts the chat from: a job in the foreground, its stops and its
end reported.

Killing the job leaves the terminal to this one, as it does in life; were the job the leader of the
session, its end would hang up the terminal. Run as a program: descriptor for reports, then the
command. Reports are lines of JSON; it ends when the other end of the descriptor is closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import termios


def main() -> None:
    """Run one job."""
    reports = int(sys.argv[1])
    command = sys.argv[2:]
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.close(reports)
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(command[0], command)
    signal.signal(signal.SIGHUP, lambda *_: os.killpg(job, signal.SIGHUP))
    _report(reports, started=job)
    while True:
        _, status = os.waitpid(job, os.WUNTRACED | os.WCONTINUED)
        if os.WIFSTOPPED(status):
            _report(reports, stopped=True)
        elif os.WIFCONTINUED(status):
            _report(reports, continued=True)
        else:
            break
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.tcsetpgrp(0, os.getpgrp())
    _report(
        reports, ended=-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    )
    os.read(reports, 1)


def _report(reports: int, **values: int | bool) -> None:
    os.write(reports, json.dumps(values).encode() + b"\n")


if __name__ == "__main__":
    main()
