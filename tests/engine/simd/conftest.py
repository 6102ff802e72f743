import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def forked() -> Iterator[Callable[..., str]]:
    """Run code or tests in a fork with environment variables, return the output, and assert that
    they succeed."""
    command = [sys.executable, "-m", "tests.programs.engine.forks"]
    root = Path(__file__).resolve().parents[3]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        command, cwd=root, text=True, bufsize=1, start_new_session=True, **streams
    ) as process:

        def run(program: str | list[str], **variables: str) -> str:
            print(json.dumps([variables, program]), file=process.stdin, flush=True)
            code, output = json.loads(process.stdout.readline())
            assert code == 0, output[-4000:]
            return output

        yield run
        os.killpg(process.pid, signal.SIGKILL)
