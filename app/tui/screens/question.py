"""Dialogs over the chat: sending files, deleting a branch, and switching the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from typing import Any, Literal

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.text import figures
from app.tui.bindings import bindings
from app.tui.chat.writer_choice import WriterChoice
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.call_question import CALM_S


def _answer_lines(keymap: Keymap, scope: str, answers: dict[str, str], classes: str = "") -> Static:
    """Return a widget with the keys of a question and their effects, by the names of actions."""
    lines = [f"{keymap.first_key(f'{scope}.{name}'):<6} {words}" for name, words in answers.items()]
    return Static("\n".join(lines), markup=False, classes=classes or f"{scope}-keys")


class CalmScreen(ModalScreen[Any]):
    """Question that ignores a yes while the user types; dismissed with None for a no.

    Args:
        clock: a monotonic clock.
    """

    CSS_PATH = "question.tcss"

    def __init__(self, keymap: Keymap, clock: Callable[[], float]) -> None:
        super().__init__()
        self._keymap = keymap
        self._clock = clock
        self._last_key_s = clock()

    def on_key(self, event: events.Key) -> None:
        """Remember the time of other keys."""
        if event.key not in self.active_bindings:
            self._last_key_s = self._clock()

    def agree(self, answer: object) -> None:
        """Answer with yes, unless the user types."""
        now_s = self._clock()
        if now_s - self._last_key_s >= CALM_S:
            dismiss_once(self, answer)
        self._last_key_s = now_s

    action_leave = dismiss_once


def price_line(n_tokens: int, prefill_tps: float | None, host: str = "") -> str:
    """Return a sentence on what it costs to continue the conversation with another model."""
    if host:
        return f"The whole conversation is sent to {host} with each message."
    size = f"{figures.count(n_tokens)} tokens"
    if prefill_tps:
        size += f", about {figures.whole_seconds(n_tokens / prefill_tps)}"
    return f"The new model has to read this conversation first ({size})."


class SendFilesScreen(CalmScreen):
    """Question before the first file of a conversation goes to a server; True means yes."""

    BINDINGS = bindings("files")

    def __init__(self, files: str, host: str, keymap: Keymap, clock: Callable[[], float]) -> None:
        super().__init__(keymap, clock)
        self._files = files
        self._host = host

    def compose(self) -> ComposeResult:
        """Lay out files and keys."""
        with Vertical(id="question") as box:
            box.border_title = "Send to a server"
            yield Static(
                f"Send {self._files} to {self._host}?", markup=False, classes="question-call"
            )
            answers = {
                "agree": "Yes, and don't ask again in this chat",
                "leave": "No",
            }
            yield _answer_lines(self._keymap, "files", answers)

    action_agree = partialmethod(CalmScreen.agree, True)


class RunShellScreen(CalmScreen):
    """Question before the first shell command of the user runs; True means yes."""

    BINDINGS = bindings("shell")

    def __init__(self, command: str, keymap: Keymap, clock: Callable[[], float]) -> None:
        super().__init__(keymap, clock)
        self._command = command

    def compose(self) -> ComposeResult:
        """Lay out command and keys."""
        with Vertical(id="question") as box:
            box.border_title = "Run a command"
            yield Static(self._command, markup=False, classes="question-call")
            answers = {
                "agree": "Run it in the shell, and don't ask again until Jalopy closes",
                "leave": "Don't run it",
            }
            yield _answer_lines(self._keymap, "shell", answers)

    action_agree = partialmethod(CalmScreen.agree, True)


class DeleteBranchScreen(CalmScreen):
    """Question before a branch is deleted; True means yes."""

    BINDINGS = bindings("branch")

    def __init__(self, question: str, keymap: Keymap, clock: Callable[[], float]) -> None:
        super().__init__(keymap, clock)
        self._question = question

    def compose(self) -> ComposeResult:
        """Lay out question and keys."""
        with Vertical(id="question") as box:
            box.border_title = "Delete a branch"
            yield Static(self._question, markup=False, classes="question-call")
            answers = {"agree": "Yes, delete it", "leave": "No, keep it"}
            yield _answer_lines(self._keymap, "branch", answers)

    action_agree = partialmethod(CalmScreen.agree, True)


class SwitchModelScreen(ModalScreen[Literal["keep", "new"] | None]):
    """Question before another model opens; dismissed with the choice, or with None to cancel.

    Args:
        title: name of the model, clean.
        n_tokens: tokens of the conversation, counted with the present model.
        prefill_tps: estimated prefill speed of the new model; None if unknown.
        host: server of the new model; empty for a local model.
    """

    CSS_PATH = "switch_model.tcss"
    BINDINGS = bindings("switch")

    def __init__(
        self, title: str, n_tokens: int, prefill_tps: float | None, keymap: Keymap, host: str = ""
    ) -> None:
        super().__init__()
        self._price = price_line(n_tokens, prefill_tps, host)
        self._title = title
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        """Lay out question and keys."""
        with Vertical(id="switch-model") as box:
            box.border_title = "Switch model"
            yield Static(f"Open {self._title}?", markup=False, classes="switch-question")
            yield Static(self._price, markup=False)
            answers = {
                "keep": "Continue here",
                "new": "Start a new conversation",
                "leave": "Cancel",
            }
            yield _answer_lines(self._keymap, "switch", answers)

    action_keep = partialmethod(dismiss_once, "keep")
    action_new = partialmethod(dismiss_once, "new")
    action_leave = dismiss_once


class OpenConversationScreen(ModalScreen[Literal["writer", "keep"] | None]):
    """Question which model continues a conversation; dismissed with None to cancel."""

    CSS_PATH = "switch_model.tcss"
    BINDINGS = bindings("writer")

    def __init__(self, choice: WriterChoice, keymap: Keymap) -> None:
        super().__init__()
        self._choice = choice
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        """Lay out question and keys."""
        choice = self._choice
        with Vertical(id="switch-model") as box:
            box.border_title = "Open conversation"
            question = f'Which model continues "{choice.title}"?'
            yield Static(question, markup=False, classes="switch-question")
            writer_line = f"{choice.writer} wrote it. {choice.writer_cost}"
            yield Static(writer_line, markup=False, classes="switch-cost")
            open_line = f"{choice.open_model} is open. {choice.open_cost}"
            yield Static(open_line, markup=False, classes="switch-cost")
            answers = {
                "load": f"Open {choice.writer}",
                "keep": f"Keep {choice.open_model}",
                "leave": "Cancel",
            }
            yield _answer_lines(self._keymap, "writer", answers, "switch-keys")

    action_load = partialmethod(dismiss_once, "writer")
    action_keep = partialmethod(dismiss_once, "keep")
    action_leave = dismiss_once
