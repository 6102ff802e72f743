"""Question in the transcript whether a tool may run."""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Callable
from functools import partialmethod

from textual import events
from textual.widgets import Static

from app.tools.toolbox import call_question
from app.tui.bindings import bindings
from app.tui.chat.messages import MessageBlurred
from app.tui.keymap import Keymap
from engine.prompt.tools.calls import ToolCall

CALM_S = 0.7
"""Seconds without keys before a letter is an answer, so that typing a message answers nothing."""
_LINE_CHARS = 70
"""Limit on a question with its keys in one line; it fits 80 columns."""


class CallQuestion(Static, can_focus=True):
    """A call that waits for the user's answer, with the keys; hidden while there is none.

    A letter that is no answer goes to the prompt, and so does one that follows other keys.

    Args:
        clock: a monotonic clock.

    Attributes:
        call: the call; None if there is no question.
    """

    BINDINGS = bindings("question")

    def __init__(self, keymap: Keymap, clock: Callable[[], float]) -> None:
        super().__init__(markup=False)
        self.display = False
        self.call: ToolCall | None = None
        self._keymap = keymap
        self._clock = clock
        self._answer: Future[str | None] | None = None
        self._last_key_s = 0.0

    async def ask(self, server: str, call: ToolCall) -> str | None:
        """Ask about a call; return "once" or "always", or None for a no."""
        self.call = call
        self._answer = get_running_loop().create_future()
        self._last_key_s = self._clock()
        self.update(_question_text(server, call, self._keymap))
        self.display = True
        try:
            return await self._answer
        finally:
            self.call = None
            self.display = False

    def on_key(self, event: events.Key) -> None:
        """Hand a letter to the prompt unless it is an answer."""
        now_s = self._clock()
        is_calm = now_s - self._last_key_s >= CALM_S
        self._last_key_s = now_s
        active = self.screen.active_bindings.get(event.key)
        is_answer = active is not None and active.node is self
        if event.is_printable and not (is_answer and is_calm):
            event.stop()
            self.post_message(MessageBlurred(events.Key(event.key, event.character)))

    def on_paste(self, event: events.Paste) -> None:
        """Hand a paste to the prompt."""
        event.stop()
        self.post_message(MessageBlurred(events.Paste(event.text)))

    def answer(self, answer: str | None) -> None:
        """Answer the question."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    action_once = partialmethod(answer, "once")
    action_always = partialmethod(answer, "always")
    action_leave = partialmethod(answer, None)


def _question_text(server: str, call: ToolCall, keymap: Keymap) -> str:
    """Return the question with the keys that answer it."""
    answers = {"once": "yes", "always": "always", "leave": "no"}
    hints = [keymap.hint(f"question.{name}", words) for name, words in answers.items()]
    question = call_question(server, call)
    keys = " · ".join(filter(None, hints))
    if len(question) + len(keys) > _LINE_CHARS:
        return f"{question.rstrip()}\n{keys}"
    return question + keys
