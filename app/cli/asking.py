"""Questions on a terminal that has no screen: about files that go away, and about the calls of
tools."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable

from app.conversations.conversation import Conversation
from app.session.headless import POLL_S, HeadlessChat
from app.tools.toolbox import whole_arguments
from engine.prompt.tools.calls import ToolCall


def can_ask() -> bool:
    """Whether somebody sits at a terminal who sees a question and can answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def answer_to(question: str, is_over: Callable[[], bool] = lambda: False) -> str:
    """Ask the user; returns the answer in small letters, "" where none comes.

    What was typed before the question counts for nothing: it may have been pasted. Ends where
    ``is_over``.
    """
    with contextlib.suppress(ImportError):
        import termios

        with contextlib.suppress(OSError, ValueError, termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    sys.stderr.write(f"{question} ")
    sys.stderr.flush()
    # where no input can be waited for in this way, it is read at once
    with contextlib.suppress(OSError, ValueError):
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            if is_over():
                return ""
    return sys.stdin.readline().strip().lower()


def agrees(question: str) -> bool:
    """Whether the user answers with yes."""
    return answer_to(f"{question} (y/n)") in ("y", "yes")


class CallQuestions:
    """Asks about calls; attach it to the ``talk`` whose calls they are; ``talk``: None until there
    is one."""

    def __init__(self) -> None:
        self.talk: HeadlessChat | None = None
        self._agreed: set[tuple[str, str]] = set()
        """Servers and tools that are not asked about any more in ``_agreed_in``."""
        self._agreed_in: Conversation | None = None

    def may_run(self, call: ToolCall) -> bool:
        """Whether a tool may run."""
        assert self.talk is not None
        talk = self.talk
        box = talk.engine_thread.tools
        conversation = talk.chat_session.conversation
        if box is None or box.runs_always(call.name):
            return True
        if self._agreed_in is not conversation:
            self._agreed_in = conversation
            self._agreed = set()
        which = box.owner_of(call.name), call.name
        if which in self._agreed:
            return True
        what = f"the model wants to use {call.name} of {which[0]}:\n{whole_arguments(call)}\n"
        answer = answer_to(
            f"{what}run it? (y/n, a = always in this conversation)", lambda: talk.is_stopping
        )
        if answer in ("a", "always"):
            self._agreed.add(which)
        return answer in ("y", "yes", "a", "always")
