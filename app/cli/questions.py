"""Questions to the user on a plain terminal: about files sent to a server, and about tool calls."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable

from app.conversations.conversation import Conversation
from app.session.headless import POLL_S, HeadlessChat
from app.tools.toolbox import call_question
from engine.prompt.tools.calls import ToolCall


def can_ask() -> bool:
    """Whether a user at a terminal can see a question and answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def answer_to(question: str, is_over: Callable[[], bool] = lambda: False) -> str:
    """Ask the user and return the answer in lower case.

    Input typed before the question is dropped, since it may have been pasted.

    Args:
        is_over: whether the question no longer matters; it is asked again and again.

    Returns:
        The answer; "" if the input ends or ``is_over`` is true.
    """
    with contextlib.suppress(ImportError):
        import termios

        with contextlib.suppress(OSError, ValueError, termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    sys.stderr.write(f"{question} ")
    sys.stderr.flush()
    # select() fails for some kinds of input; these are read directly.
    with contextlib.suppress(OSError, ValueError):
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            if is_over():
                return ""
    return sys.stdin.readline().strip().lower()


def agrees(question: str) -> bool:
    """Whether the user answers yes."""
    return answer_to(f"{question} (y/n)") in ("y", "yes")


class CallQuestions:
    """Questions to the user about the tool calls of a chat.

    Attributes:
        chat: the chat; set it before the first question.
    """

    def __init__(self) -> None:
        self.chat: HeadlessChat | None = None
        self._allowed_tools: set[tuple[str, str]] = set()
        """Servers and tools that may run without a question in ``_conversation``."""
        self._conversation: Conversation | None = None

    def may_run(self, call: ToolCall) -> bool:
        """Whether a tool call may run; asks the user if necessary."""
        assert self.chat is not None
        chat = self.chat
        toolbox = chat.engine_thread.tools
        if toolbox is None or toolbox.runs_always(call.name):
            return True

        conversation = chat.chat_session.conversation
        if self._conversation is not conversation:
            self._conversation = conversation
            self._allowed_tools = set()

        server = toolbox.owner_of(call.name)
        tool = server, call.name
        if tool in self._allowed_tools:
            return True

        answer = answer_to(
            f"{call_question(server, call)}(y/n, a = always in this conversation)",
            lambda: chat.is_stopping,
        )
        if answer in ("a", "always"):
            self._allowed_tools.add(tool)
        return answer in ("y", "yes", "a", "always")
