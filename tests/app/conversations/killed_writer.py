"""A process that saves a conversation until it is killed, and says what it has saved.

``python -m tests.app.conversations.killed_writer 200`` kills 200 of them at random moments and checks each.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from app.conversations.conversation import Conversation
from app.conversations.store import Store
from tests.app.conversations.talk import FIGURES, ask, journal


def write(root: Path) -> None:
    """Ask and answer for ever; a line on stdout for each message that must survive."""
    from app.conversations.conversation import Ending
    from app.conversations.journal import Partial

    last = max(Store(root).ids(), default=None)
    made, conversation = journal(root), Conversation("Be brief.")
    if last is not None:
        opened = Store(root).open(last)
        made.adopt(opened)
        conversation = opened.saved.conversation
    n = len(conversation.messages)
    while True:
        n += 1
        ask(made, conversation, f"question {n}")
        made.settle(60)
        print(f"question {n}", flush=True)
        text = ""
        for part in range(3):
            text += f"answer {n}.{part} "
            made.flush(conversation, Partial(text, "", (n, part), text))
        conversation.add_reply(text, Ending.COMPLETE, FIGURES)
        made.note_settled(conversation)
        made.settle(60)
        print(text, flush=True)


def kill_one(root: Path, wait_s: float) -> tuple[list[str], list[str]]:
    """Let a process write for ``wait_s`` and kill it; returns the lines it reported as saved, and the lines on disk."""
    process = subprocess.Popen([sys.executable, "-m", __spec__.name, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(wait_s)
    process.kill()
    said = [line.rstrip("\n") for line in [first, *process.stdout]]
    process.stdout.close()
    process.wait()
    # A line that was cut off by the kill was saved before it was said.
    opened = Store(root).open(max(Store(root).ids()))
    assert opened.log is not None, "the lock died with its process"
    opened.log.close()
    assert opened.notice == "", opened.notice
    return said, [message.text for message in opened.saved.conversation.messages]


def lost(said: list[str], found: list[str]) -> list[str]:
    """Return what was said to be saved and is not there; the kill may have cut off the last that was said."""
    *whole, last = said
    is_last_there = any(one.startswith(last) for one in found)
    return [*(text for text in whole if text not in found), *([] if is_last_there else [last])]


def main(n_kills: int) -> None:
    """Kill many, each going on where the last one was killed."""
    with tempfile.TemporaryDirectory() as directory:
        root, n_lost, n_said = Path(directory) / "conversations", 0, 0
        for _ in range(n_kills):
            said, found = kill_one(root, random.uniform(0, 0.1))
            n_said += len(said)
            n_lost += len(lost(said, found))
        print(f"{n_kills} kills, {n_said} messages said to be saved, {n_lost} lost")


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        main(int(sys.argv[1]))
    else:
        write(Path(sys.argv[1]))
