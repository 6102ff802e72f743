"""Asks whether a tool may run, and shows the call whole: which tool of which server, with which arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.text import figures
from app.text.clean_text import clean_text
from app.tui.bindings import bindings
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once
from engine.prompt.tools.calls import ToolCall

CALM_S = 0.7
"""A yes counts this long after the question appeared and after any other key: who types a message answers nothing."""

Answer = Literal["once", "always"]


def shown(call: ToolCall) -> str:
    """Return a call's arguments, one a line; nothing in them acts on the terminal or hides."""
    lines = [json.dumps({name: value}, ensure_ascii=False)[1:-1] for name, value in call.values.items()]
    return clean_text("\n".join(lines) or "(no arguments)")


class QuestionScreen(ModalScreen[Answer | None]):
    """Asks about a tool of a server; dismissed with a yes, or with None for a no. The clock is monotonic."""

    CSS_PATH = "question.tcss"
    BINDINGS = bindings("question")
    AUTO_FOCUS = "#question-arguments"

    def __init__(self, server: str, call: ToolCall, keymap: Keymap, clock: Callable[[], float]) -> None:
        super().__init__()
        self._server, self._call, self._keymap, self._clock = server, call, keymap, clock
        self._disturbed_s = clock()

    def compose(self) -> ComposeResult:
        """Lay out call and keys."""
        key, arguments = self._keymap.first_key, shown(self._call)
        with Vertical(id="question") as box:
            box.border_title = Content(f"The model wants to use a tool of {self._server}")
            yield Static(f"Run {self._call.name}?", markup=False, classes="question-call")
            with VerticalScroll(id="question-arguments"):
                yield Static(arguments, markup=False)
            size = figures.counted(len(arguments), "character")
            box.border_subtitle = Content(f"{size} of arguments: Up and Down")
            answers = {
                "once": "run it",
                "always": "run it, and ask no more in this conversation",
                "leave": "do not run it",
            }
            lines = [f"{key(f'question.{name}'):<6} {words}" for name, words in answers.items()]
            yield Static("\n".join(lines), markup=False, classes="question-keys")

    def on_key(self, event: events.Key) -> None:
        """Take note that somebody types."""
        if event.key not in self.active_bindings:
            self._disturbed_s = self._clock()

    def _agree(self, answer: Answer) -> None:
        now_s = self._clock()
        if now_s - self._disturbed_s >= CALM_S:
            dismiss_once(self, answer)
        self._disturbed_s = now_s

    def action_once(self) -> None:
        """Run it."""
        self._agree("once")

    def action_always(self) -> None:
        """Run it, and ask no more for this tool."""
        self._agree("always")

    def action_leave(self) -> None:
        """Do not run it."""
        dismiss_once(self, None)
