"""Handling of saved conversations by ``jalopy run --session``, step by step in separate processes.

``python -m tests.app.conversations.session_starter NAME N``: for each byte on stdin, one of N
processes opens the conversation of that name and reports the result. With one more byte, a process
that has opened it sends a message and exits.
"""

from __future__ import annotations

import os
import sys

from app.backend.options import ChatOptions
from app.cli.run import open_saved_session
from app.conversations.journal import open_storage
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from app.session.headless import HeadlessChat
from tests.app.fake_engine import Script


def open_session(name: str) -> HeadlessChat:
    """Open the conversation of that name, or start it."""
    options = ChatOptions(open_model=Script().open_model, sampling=lambda chosen, model, mode: None)
    talk = HeadlessChat(options, open_storage(built_in_settings(), is_named=True))
    try:
        opened = open_saved_session(name, talk)
    except BaseException:
        talk.close()
        raise
    if opened is not None:
        talk.chat_session.open_saved(opened)
    return talk


def say_in(talk: HeadlessChat, text: str) -> str:
    """Send a message that gets no reply, and close. Returns why it is not saved, or ""."""
    chat_session = talk.chat_session
    chat_session.conversation.add_user(text)
    chat_session.journal.save_question(chat_session.conversation, is_replacing=False)
    return talk.close()


def report(line: str) -> None:
    """Report a line to the parent in one write, since the processes share a pipe."""
    os.write(1, f"{line}\n".encode())


def start(name: str) -> None:
    """Open the conversation and wait."""
    os.read(0, 1)
    try:
        talk = open_session(name)
    except Refusal as refusal:
        report(f"refused: {refusal}")
        return
    report(f"open: {talk.chat_session.journal.id}")
    os.read(0, 1)
    say_in(talk, f"from {os.getpid()}")


def main(name: str, n: str) -> int:
    """Fork the processes, so the program is imported only once. Returns 1 if one of them failed."""
    for _ in range(int(n)):
        if os.fork() == 0:
            start(name)
            return 0
    print("ready", flush=True)
    statuses = [os.wait()[1] for _ in range(int(n))]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
