"""Python in a sandbox: one process for each call, isolated by ``sandbox.py``."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.tools.built_in.sandbox import CPU_S, READY
from app.tools.built_in.tool import (
    MAX_RESULT_CHARS,
    BuiltInTool,
    Stopped,
    ToolFailure,
    text_parameters,
)
from app.tools.mcp.served_tools import ServedTool
from app.tools.mcp.server import ToolServerError
from app.tools.mcp.transport import StoppedError

MAX_CODE_CHARS = 1 << 14
WALL_S = 20.0
"""Limit on the time of a call."""
_POLL_S = 0.1
_READ_BYTES = 1 << 14
_DESCRIPTION = (
    "Runs Python code and returns what it prints, and the value of the last line. No files, no "
    "network, no input; standard modules such as math, statistics, datetime, re and json."
)


def run_python(code: str, is_stopped: Stopped) -> str:
    """Run code in a process of its own and return its output.

    Raises:
        ToolFailure: It takes too long or is too long.
        ToolServerError: The process cannot be isolated here; the code does not run.
        StoppedError: The user stops it.
    """
    if len(code) > MAX_CODE_CHARS:
        raise ToolFailure(f"The code is longer than {MAX_CODE_CHARS} characters.")
    script = Path(__file__).with_name("sandbox.py")
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name == "TZ"},
            cwd="/",
            start_new_session=True,  # Ctrl+C in the terminal must not reach it.
        )
    except OSError as error:
        raise ToolServerError(f"Python cannot be isolated: {error.strerror}") from error
    try:
        return _talk(process, code, is_stopped)
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        process.wait()


def _talk(process: subprocess.Popen[bytes], code: str, is_stopped: Stopped) -> str:
    """Send the code to a process and return its output."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):  # It has ended; its output says why.
        process.stdin.write(code.encode("utf-8", "replace"))  # It fits into an empty pipe.
        process.stdin.close()
    output = bytearray()
    deadline_s = time.monotonic() + WALL_S
    code_of_end: int | None = None
    is_open = True
    while code_of_end is None:
        if is_stopped():
            raise StoppedError
        if time.monotonic() > deadline_s:
            raise ToolFailure(f"The code runs longer than {WALL_S:.0f} s. {_beginning(output)}")
        if len(output) > MAX_RESULT_CHARS:
            return _text(output) + "\n[more is left out]"
        if not is_open:
            with suppress(subprocess.TimeoutExpired):
                code_of_end = process.wait(_POLL_S)
        elif select.select([process.stdout], [], [], _POLL_S)[0]:
            piece = os.read(process.stdout.fileno(), _READ_BYTES)
            is_open = bool(piece)
            output += piece
    if output[:1] != READY:
        reason = output[1:200].decode("utf-8", "replace") or "its process ends at once"
        raise ToolServerError(f"Python cannot be isolated on this system: {reason}")
    if code_of_end:
        raise ToolFailure(
            f"The code was ended: more than {CPU_S} s of processor time, or too much memory. "
            f"{_beginning(output)}"
        )
    return _text(output) or "(the code printed nothing: print the result)"


def _text(output: bytearray) -> str:
    return bytes(output[len(READY) :]).decode("utf-8", "replace").rstrip()


def _beginning(output: bytearray) -> str:
    text = _text(output)[:500]
    if text:
        return f"Its output begins: {text}"
    return ""


def python_tools(is_stopped: Stopped) -> list[BuiltInTool]:
    """Return the tool that runs Python, after a try whether it can be isolated.

    Raises:
        ToolServerError: It cannot be isolated on this system.
    """
    if sys.platform != "linux":
        raise ToolServerError("Python cannot be isolated on this system: this needs Linux")
    run_python("", is_stopped)

    def run(arguments: Mapping[str, Any]) -> str:
        return run_python(str(arguments["code"]), is_stopped)

    tool = ServedTool("run_python", _DESCRIPTION, text_parameters({"code": "Python code"}))
    return [BuiltInTool(tool, run)]
