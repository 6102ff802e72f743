"""Notes of the program in the chat: lines between the messages, and words at the prompt's edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer

from app.chat.turns import Turns
from app.program.bundled_model import WHAT_IT_IS
from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text
from app.tui.keymap import Keymap
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import MessageView, Note, ReplyView, ToolView
from app.tui.widgets.prompt import Prompt, prompt_hint
from app.tui.widgets.transcript import Transcript

FIRST_QUESTION = "What is the capital of Peru?"
NOTE_S = 8.0
"""Seconds that a note out of sight stands at the prompt's edge."""


def busy_line(keymap: Keymap, place: str = "") -> str:
    """Say that nothing can be done now, and which key ends that in the chat."""
    return ": ".join(filter(None, ("the engine is busy", keymap.hint("chat.stop", f"{place}stops it"))))


def greeting(keymap: Keymap) -> str:
    """Return what a first start begins with: what this is, and three things to try."""
    things = [
        ("type", FIRST_QUESTION),
        (keymap.first_key("app.models") or "/models", "gets a real model"),
        (keymap.first_key("app.performance") or "/stats", "shows the speed"),
    ]
    widest = max(len(key) for key, _ in things)
    lines = [f"  {key:<{widest}}  {what}" for key, what in things]
    return "\n".join([f"Hello! All of this is computed on your own machine. {WHAT_IT_IS}.", "", "Try:", *lines])


NOT_PART = "this message is not part of the conversation"
"""It was not sent, was taken back, or its turn came to nothing."""


class Notes:
    """The program's words: lines in the transcript, and words at the prompt's edge."""

    def __init__(
        self, screen: Screen[Any], transcript: Transcript, prompt: Prompt, turns: Turns, keymap: Keymap
    ) -> None:
        self._screen, self._transcript, self._prompt, self._turns = screen, transcript, prompt, turns
        self._keymap = keymap
        self._usual = prompt_hint(keymap)
        self._passing: Timer | None = None

    def note(self, text: str, is_error: bool = False, kind: str = "") -> Note:
        """Say something between the messages; where the user is not at their end, at the prompt's edge as well."""
        note = self._transcript.add_note(clean_text(text), "error" if is_error else kind)
        if isinstance(self._screen.focused, MessageView) or self._transcript.is_scrolled_up:
            self.hint_for(NOTE_S, clean_line(text, 300))
        return note

    def tell(self, obey: Callable[[], str]) -> None:
        """Do something, and say what came of it or why it was refused."""
        try:
            self.note(obey())
        except Refusal as refusal:
            self.note(str(refusal), is_error=True)

    def note_busy(self) -> None:
        """Say that the engine is busy, and what ends that."""
        self.note(busy_line(self._keymap))

    def refuses_while_busy(self) -> bool:
        """Whether the engine is busy; then a line says so."""
        if self._turns.is_busy:
            self.note_busy()
        return self._turns.is_busy

    # ---- the prompt's edge

    def hint(self, text: str = "") -> None:
        """Show a word at the prompt's edge; "" brings the usual one back."""
        self._prompt.border_title = Content(text or self._usual)

    def set_usual(self, text: str = "") -> None:
        """Set the usual word; "" shows the keys that send."""
        self._usual = text or prompt_hint(self._keymap)
        self.hint()

    def hint_for(self, seconds: float, text: str) -> None:
        """Show a passing word there."""
        self.hint(text)
        if self._passing is not None:
            self._passing.stop()
        self._passing = call_once(self._screen, seconds, self._end_passing)

    def hint_keys_of(self, view: MessageView) -> None:
        """Name the keys that do something on this message."""
        is_reply, is_tool = isinstance(view, ReplyView), isinstance(view, ToolView)
        is_last = view.message is not None and view.message is self._turns.last_message
        has_thought = isinstance(view, ReplyView) and view.thinking is not None
        words = {
            "message.copy_message": "copy",
            "message.copy_code": "copy code" if is_reply and "```" in view.text else "",
            "message.continue_here": "goes on" if is_last and self._turns.can_continue else "",
            "message.regenerate_here": "again" if is_reply else "",
            "message.edit_here": "" if is_tool else "edit",
            "message.fork_here": "fork",
            "message.toggle_thinking": "all of it" if is_tool else "thinking" if has_thought else "",
            "chat.stop": "back",
        }
        self.hint(" · ".join(filter(None, (self._keymap.hint(key, word) for key, word in words.items() if word))))

    def _end_passing(self) -> None:
        focused = self._screen.focused
        if isinstance(focused, MessageView):
            self.hint_keys_of(focused)
        else:
            self.hint()
