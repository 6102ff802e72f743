"""Output of shell commands: bounded in time and size, and nothing is left running."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from app.program.shell_output import MOST_BYTES, shell_output

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of sh")


def run(command: str, timeout_s: float = 30.0) -> str:
    return asyncio.run(shell_output(command, timeout_s)).text


def test_output_and_errors_are_one_text_without_controls():
    assert run("printf 'one\\n'; printf '\\033[31mred\\033[0m\\n' >&2") == "one\nred"


def test_a_failure_names_its_code():
    assert run("echo no; exit 3") == "no\n(ended with code 3)"
    assert run("true") == "(no output)"


def test_a_long_output_is_cut_and_its_command_ended():
    text = run("yes")
    assert len(text) < MOST_BYTES + 100
    assert text.endswith("(more than 64 KiB: the rest is left out)")


def test_a_slow_command_ends_with_all_its_processes(tmp_path: Path):
    mark = tmp_path / "pid"
    text = run(f"sleep 300 & echo $! > {mark}; echo begun; sleep 300", timeout_s=0.5)
    assert text == "begun\n(ended after 0 s)"
    pid = int(mark.read_text())
    give_up_s = time.monotonic() + 20
    while time.monotonic() < give_up_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the command left a process")


def test_a_process_of_another_group_is_not_waited_for():
    began_s = time.monotonic()
    assert run("setsid sleep 1.5 & echo begun", timeout_s=0.5).startswith("begun")
    assert time.monotonic() - began_s < 60


def test_a_command_that_reads_gets_no_input():
    assert run("cat") == "(no output)"
