"""``python -m tests.app.conversations.killed_writer 1000``: kill -9 a process that saves a
conversation, 1,000 times.

Each goes on where the one before was killed. It says what it has saved: every message, and every
piece of a reply. After each kill all of that must be on the disk. The exit code is 0 only if
nothing was lost.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from app.conversations.conversation import Conversation, Ending
from app.conversations.journal import PartialReply
from app.conversations.store import Store
from tests.app.conversations.talk import FIGURES, PATIENCE_S, ask, journal

LONGEST_CONVERSATION = 200


def write(root: Path, told: int) -> None:
    """Ask and answer for ever; a line for each message and piece that must survive: where it is,
    then its text."""
    store = Store(root)
    last = max(store.ids(), default=None)
    live_journal = journal(root)
    conversation = Conversation("Be brief.")
    if last is not None and len(store.read(last).conversation.messages) < LONGEST_CONVERSATION:
        opened = store.open(last)
        assert opened.open_conversation is not None, opened.obstacle
        assert opened.notice == "", opened.notice
        live_journal.resume(opened)
        conversation = opened.saved.conversation

    def tell(place: int, text: str) -> None:
        assert live_journal.wait_until_saved(PATIENCE_S), live_journal.trouble
        os.write(told, f"{live_journal.id} {place} {text}\n".encode())

    while True:
        # in place of a question that a kill left unanswered
        n = 2 * (len(conversation.messages) // 2)
        ask(live_journal, conversation, f"question {n}")
        tell(n, f"question {n}")
        text = ""
        for part in range(5):
            text += f"answer {n}.{part} "
            live_journal.save_partial(conversation, PartialReply(text, "", (n, part), text))
            tell(n + 1, text)
        conversation.add_reply(text, Ending.COMPLETE, FIGURES)
        live_journal.save_turn_end(conversation)
        tell(n + 1, text)


def kill_one(root: Path, wait_s: float) -> tuple[int, list[str]]:
    """Let a process write for a while and kill it; returns how much it said to have saved, and what
    of it is lost."""
    reads, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            write(root, told)
        finally:
            os._exit(1)
    os.close(told)
    said = os.read(reads, 1 << 16)  # it has begun
    time.sleep(wait_s)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it ended by itself"
    while more := os.read(reads, 1 << 16):
        said += more
    os.close(reads)
    lines = said.decode().split("\n")[:-1]  # a line that was cut off was not said
    found: dict[str, list[str]] = {}
    lost = []
    for line in lines:
        conversation_id, place, text = line.split(" ", 2)
        if conversation_id not in found:
            messages = Store(root).read(conversation_id).conversation.messages
            found[conversation_id] = [message.text for message in messages]
        there = found[conversation_id][int(place) :][:1]
        if not there or not there[0].startswith(text):
            lost.append(line)
    return len(lines), lost


def main(n_kills: int, stops: bool = False) -> int:
    """Kill many, or until something is lost; returns the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "conversations"
        n_said = 0
        lost = []
        for _ in range(n_kills):
            n, missing = kill_one(root, random.uniform(0, 0.05))
            n_said += n
            lost += missing
            if lost and stops:
                break
        print(
            f"{n_kills} kills, {n_said} messages and pieces said to be saved, {len(lost)} lost "
            f"{lost[:5]}"
        )
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
