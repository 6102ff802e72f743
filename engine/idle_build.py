"""Machine code for this processor's level, built in idle time for the next start.

Where the pack of the level is missing or stale, this process uses a lower level. A process of low
priority builds the pack, one kernel at a time, as long as it is asked to.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from engine.build_ahead import environment_of
from engine.machine import processor
from engine.machine.code import CACHE_DIRECTORY, ENGINE
from engine.machine.packs import choice, has_packs, own_target

BUILD_BYTES = 512 << 20
"""Memory that the process needs, with room to spare. It begins again before it needs more."""


def is_needed() -> bool:
    """Return whether the next start can be better, and there is a private folder for the pack."""
    return (
        CACHE_DIRECTORY is not None
        and has_packs()
        and not processor.IS_CHOSEN
        and not choice().is_best
    )


class IdleBuild:
    """Process that builds the pack of this processor's level.

    Args:
        folder: Folder for the finished pack.
        places: Kernels to build; all if empty.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, folder: Path | None = CACHE_DIRECTORY, places: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "engine.build_ahead", "--idle", str(folder), *places]
        self._process = subprocess.Popen(
            command, cwd=ENGINE.parent, env=environment_of(own_target()[1]), bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,  # a closed terminal must not kill it before it has saved
        )  # fmt: skip
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._is_compiling = False

    def step(self) -> bool:
        """Let the process compile one more kernel if it waits; return whether it still runs."""
        stdin = self._process.stdin
        stdout = self._process.stdout
        assert stdin is not None
        assert stdout is not None
        if self._process.poll() is not None:
            return False
        if self._is_compiling and not stdout.read(1 << 16):
            return True
        with suppress(OSError):
            stdin.write(b"\n")
            self._is_compiling = True
        return True

    @property
    def is_complete(self) -> bool:
        """Whether the pack is built, for the next start."""
        return self._process.poll() == 0

    def close(self) -> None:
        """End the process after the kernel that it compiles; what is done is saved."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._process.wait()
