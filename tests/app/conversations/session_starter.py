"""The handling of saved conversations by ``jalopy run --session``, in a process of its own and in steps.

``python -m tests.app.conversations.session_starter NAME``: a line on stdin lets it open the conversation of that name,
and it says what became of that; another line lets it say something there and end.
"""

from __future__ import annotations

import os
import sys

from app.chat.options import ChatOptions
from app.chat.talk import Talk
from app.cli.run import go_on_with
from app.conversations.journal import conversations_at_hand
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from tests.app.fake_engine import Script


def open_session(name: str) -> Talk:
    """Open the conversation of that name, or begin it."""
    options = ChatOptions(open_model=Script().open_model, sampling=lambda model, mode: None)
    talk = Talk(options, conversations_at_hand(built_in_settings(), is_named=True))
    try:
        opened = go_on_with(name, talk)
    except BaseException:
        talk.close()
        raise
    if opened is not None:
        talk.turns.open_saved(opened)
    return talk


def say_in(talk: Talk, text: str) -> str:
    """Send a message, of which no answer comes, and end; returns why it is not saved, or ""."""
    turns = talk.turns
    turns.conversation.add_user(text)
    turns.journal.note_asked(turns.conversation, is_replacing=False)
    return talk.close()


def main(name: str) -> None:
    """Open, and wait."""
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        talk = open_session(name)
    except Refusal as refusal:
        print(f"refused: {refusal}", flush=True)
        return
    print(f"open: {talk.turns.journal.id}", flush=True)
    if sys.stdin.readline():
        say_in(talk, f"from {os.getpid()}")
    else:
        talk.close()


if __name__ == "__main__":
    main(sys.argv[1])
