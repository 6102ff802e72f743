"""Priority among other programs: low for a server, and where the setting asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.machine.priority import LOW_NICENESS, is_low


@pytest.mark.parametrize(
    ("priority", "command", "expected"),
    [
        ("auto", "chat", False),
        ("auto", "serve", True),
        ("normal", "serve", False),
        ("low", "chat", True),
    ],
)
def test_a_server_has_low_priority_unless_set(priority: str, command: str, expected: bool):
    assert is_low(priority, command) is expected


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="SCHED_BATCH is a policy of Linux")
def test_threads_started_later_have_low_priority_too():
    program = (
        "import os, threading\n"
        "from app.machine.priority import lower_priority\n"
        "lower_priority()\n"
        "show = lambda: print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))\n"
        "thread = threading.Thread(target=show)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    niceness, policy = map(int, result.stdout.split())
    assert niceness >= LOW_NICENESS
    assert policy == os.SCHED_BATCH
