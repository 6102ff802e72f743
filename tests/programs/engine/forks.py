"""Python with the variables of one processor after the other, each in a fork of a process that
imported the rest once.

``python -m tests.programs.engine.forks`` reads lines of JSON, ``[variables, code or arguments of pytest]``,
and answers each with ``[exit code, output]``. Nothing of the engine is imported before a fork:
variables give its kernels their form.
"""

import gc
import json
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from importlib import import_module, metadata

import numba
import pytest


def become(command: str | list[str], variables: dict[str, str]) -> int:
    os.environ.update(variables)
    numba.config.reload_config()
    if isinstance(command, list):
        quiet = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
        return int(pytest.main([*quiet, *command]))
    exec(command, {})
    return 0


def forked(variables: dict[str, str], command: str | list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as out:
        if (child := os.fork()) == 0:
            code = 1
            with suppress(BaseException):
                for stream, to in enumerate(
                    (os.open(os.devnull, os.O_RDONLY), out.fileno(), out.fileno())
                ):
                    os.dup2(to, stream)
                try:
                    code = become(command, variables)
                except Exception:
                    traceback.print_exc()
                sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        return code, out.read()


if __name__ == "__main__":
    for name in ("gguf", "hypothesis", "unicorn"):
        with suppress(ImportError):
            import_module(name)
    for plugin in metadata.entry_points(group="pytest11"):
        plugin.load()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(forked(*json.loads(line))), flush=True)
