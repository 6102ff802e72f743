"""What ``jalopy run --session`` does with the saved conversations, in a process of its own and in steps.

``python -m tests.app.conversations.session_starter NAME``: a line on stdin lets it open the conversation of that name,
and it says what became of that; another line lets it say something there and end.
"""

from __future__ import annotations

import os
import sys

from app.refusals import Refusal
from app.run_session import open_session


def main(name: str) -> None:
    """Open, and wait."""
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        kept = open_session(name, "")
    except Refusal as refusal:
        print(f"refused: {refusal}", flush=True)
        return
    print(f"open: {kept.journal.id}", flush=True)
    if sys.stdin.readline():
        kept.note_asked(f"from {os.getpid()}")
    kept.end()


if __name__ == "__main__":
    main(sys.argv[1])
