"""``python -m tests.app.conversations.killed_writer 1000``: kill a process that saves a
conversation with SIGKILL, 1,000 times.

Each process continues where the previous one was killed, and reports every message and every piece
of a reply that it has saved. After each kill, all reported texts must be on the disk. The exit code
is 0 only if nothing was lost.
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


def write(root: Path, write_end: int) -> None:
    """Save questions and answers until killed.

    Writes a line for each message and piece that must survive: its position, then its text.
    """
    store = Store(root)
    last_id = max(store.ids(), default=None)
    live_journal = journal(root)
    conversation = Conversation("Be brief.")
    if (
        last_id is not None
        and len(store.read(last_id).conversation.messages) < LONGEST_CONVERSATION
    ):
        opened = store.open(last_id)
        assert opened.open_conversation is not None, opened.obstacle
        assert opened.notice == "", opened.notice
        live_journal.resume(opened)
        conversation = opened.saved.conversation

    def report(index: int, text: str) -> None:
        assert live_journal.wait_until_saved(PATIENCE_S), live_journal.trouble
        os.write(write_end, f"{live_journal.id} {index} {text}\n".encode())

    while True:
        # Replaces a question that a kill left unanswered.
        n = 2 * (len(conversation.messages) // 2)
        ask(live_journal, conversation, f"question {n}")
        report(n, f"question {n}")
        text = ""
        for n_piece in range(5):
            text += f"answer {n}.{n_piece} "
            live_journal.save_partial(conversation, PartialReply(text, "", (n, n_piece), text))
            report(n + 1, text)
        conversation.add_reply(text, Ending.COMPLETE, FIGURES)
        live_journal.save_turn_end(conversation)
        report(n + 1, text)


def kill_writer(root: Path, wait_s: float) -> tuple[int, list[str]]:
    """Let a process write for a while and kill it.

    Returns the number of texts that it reported as saved, and the reports of those that are lost.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            write(root, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    output = os.read(read_end, 1 << 16)  # the process has started
    time.sleep(wait_s)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it ended by itself"
    while chunk := os.read(read_end, 1 << 16):
        output += chunk
    os.close(read_end)
    lines = output.decode().split("\n")[:-1]  # ignores a line that was cut off
    saved_texts: dict[str, list[str]] = {}
    lost = []
    for line in lines:
        conversation_id, index, text = line.split(" ", 2)
        if conversation_id not in saved_texts:
            messages = Store(root).read(conversation_id).conversation.messages
            saved_texts[conversation_id] = [message.text for message in messages]
        matching_texts = saved_texts[conversation_id][int(index) :][:1]
        if not matching_texts or not matching_texts[0].startswith(text):
            lost.append(line)
    return len(lines), lost


def main(n_kills: int, stops: bool = False) -> int:
    """Kill many processes, or until something is lost. Returns the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "conversations"
        n_reported = 0
        lost = []
        for _ in range(n_kills):
            n, missing = kill_writer(root, random.uniform(0, 0.05))
            n_reported += n
            lost += missing
            if lost and stops:
                break
        print(
            f"{n_kills} kills, {n_reported} messages and pieces reported as saved, {len(lost)} lost "
            f"{lost[:5]}"
        )
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
