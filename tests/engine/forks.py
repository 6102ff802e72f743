"""Python with the variables of one processor after the other, each in a fork of a process that imported the rest once.

``python -m tests.engine.forks`` reads lines of JSON, ``[variables, code or arguments of pytest]``, and answers each
with ``[exit code, output]``. Nothing of the engine is imported before a fork: variables give its kernels their form.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Forks:
    """The process, for a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.forks"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, what: str | list[str], **variables: str) -> str:
        """Run code, or tests; returns what it said. Fails where it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([variables, what]) + "\n")
        self._process.stdin.flush()
        code, said = json.loads(self._process.stdout.readline())
        assert code == 0, said[-4000:]
        return str(said)

    def close(self) -> None:
        """End it, and what it forked."""
        os.killpg(self._process.pid, 9)
        self._process.communicate()


def _import_the_rest() -> None:
    for name in ("gguf", "hypothesis", "numba", "unicorn"):
        with suppress(ImportError):
            import_module(name)
    for plugin in metadata.entry_points(group="pytest11"):
        plugin.load()


def _become(what: str | list[str], variables: dict[str, str]) -> int:
    import numba
    import pytest

    os.environ.update(variables)
    numba.config.reload_config()
    if isinstance(what, list):
        quiet = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
        return int(pytest.main([*quiet, *what]))
    exec(what, {})
    return 0


def _forked(what: str | list[str], variables: dict[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as out:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for stream in (1, 2):
                    os.dup2(out.fileno(), stream)
                code = _become(what, variables)
            except BaseException as error:
                print(repr(error))
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        return code, out.read()


if __name__ == "__main__":
    _import_the_rest()
    gc.freeze()
    for line in sys.stdin:
        variables, what = json.loads(line)
        print(json.dumps(_forked(what, variables)), flush=True)
