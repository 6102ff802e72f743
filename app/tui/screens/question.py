"""Questions over the chat: whether a tool may run, with the call shown whole; what another model
does with the talk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from typing import Any, Literal

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.text import figures
from app.tools.toolbox import full_arguments
from app.tui.bindings import bindings
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once
from engine.prompt.tools.calls import ToolCall

CALM_S = 0.7
"""A yes counts this long after the question appeared and after any other key: who types a message
answers nothing."""


def _answer_lines(keymap: Keymap, scope: str, answers: dict[str, str]) -> Static:
    """Name the keys of a question by what they do; the names of the answers are those of their
    actions."""
    lines = [f"{keymap.first_key(f'{scope}.{name}'):<6} {words}" for name, words in answers.items()]
    return Static("\n".join(lines), markup=False, classes=f"{scope}-keys")


class CalmScreen(ModalScreen[Any]):
    """A question that is answered with yes only by who types nothing else; None is a no.

    The clock is monotonic.
    """

    CSS_PATH = "question.tcss"

    def __init__(self, keymap: Keymap, clock: Callable[[], float]) -> None:
        super().__init__()
        self._keymap = keymap
        self._clock = clock
        self._disturbed_s = clock()

    def on_key(self, event: events.Key) -> None:
        """Take note that somebody types."""
        if event.key not in self.active_bindings:
            self._disturbed_s = self._clock()

    def agree(self, answer: object) -> None:
        """Answer, unless somebody types."""
        now_s = self._clock()
        if now_s - self._disturbed_s >= CALM_S:
            dismiss_once(self, answer)
        self._disturbed_s = now_s

    action_leave = dismiss_once


class QuestionScreen(CalmScreen):
    """Asks about a tool of a server; dismissed with "once" or "always", or with None for a no."""

    BINDINGS = bindings("question")
    AUTO_FOCUS = "#question-arguments"

    def __init__(
        self, server: str, call: ToolCall, keymap: Keymap, clock: Callable[[], float]
    ) -> None:
        super().__init__(keymap, clock)
        self._server = server
        self._call = call

    def compose(self) -> ComposeResult:
        """Lay out call and keys."""
        arguments = full_arguments(self._call)
        with Vertical(id="question") as box:
            box.border_title = Content(f"The model wants to use a tool of {self._server}")
            yield Static(f"Run {self._call.name}?", markup=False, classes="question-call")
            with VerticalScroll(id="question-arguments"):
                yield Static(arguments, markup=False)
            size = figures.counted(len(arguments), "character")
            box.border_subtitle = Content(f"{size} of arguments: Up and Down")
            always = "run it, and ask no more in this conversation"
            answers = {"once": "run it", "always": always, "leave": "do not run it"}
            yield _answer_lines(self._keymap, "question", answers)

    action_once = partialmethod(CalmScreen.agree, "once")
    action_always = partialmethod(CalmScreen.agree, "always")


def price_line(n_tokens: int, prefill_tps: float | None, host: str = "") -> str:
    """Say what going on with the conversation costs."""
    if host:
        return f"All of the conversation is sent to {host} then, with each message."
    takes = "; how long that takes is not known yet"
    if prefill_tps:
        takes = f": about {figures.whole_seconds(n_tokens / prefill_tps)}"
    size = (
        f"The conversation has about {figures.count(n_tokens)} tokens by the present model's count"
    )
    return f"{size}. The new model must read all of it{takes}."


class SendFilesScreen(CalmScreen):
    """Asks before the first file of a conversation goes to a server; dismissed with True where it
    may."""

    BINDINGS = bindings("files")

    def __init__(self, files: str, host: str, keymap: Keymap, clock: Callable[[], float]) -> None:
        super().__init__(keymap, clock)
        self._files = files
        self._host = host

    def compose(self) -> ComposeResult:
        """Lay out files and keys."""
        with Vertical(id="question") as box:
            box.border_title = "A file leaves this machine"
            yield Static(
                f"Send {self._files} to {self._host}?", markup=False, classes="question-call"
            )
            answers = {
                "agree": "send it; later files of this conversation go unasked",
                "leave": "do not send it",
            }
            yield _answer_lines(self._keymap, "files", answers)

    action_agree = partialmethod(CalmScreen.agree, True)


class SwitchModelScreen(ModalScreen[Literal["keep", "new"] | None]):
    """Dismissed with what to do, or with None for nothing.

    The model's title is clean; a server's has a host.
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
            box.border_title = "Another model"
            yield Static(f"Open {self._title}?", markup=False, classes="switch-question")
            yield Static(self._price, markup=False)
            answers = {
                "keep": "go on with it",
                "new": "begin a new conversation",
                "leave": "open nothing",
            }
            yield _answer_lines(self._keymap, "switch", answers)

    action_keep = partialmethod(dismiss_once, "keep")
    action_new = partialmethod(dismiss_once, "new")
    action_leave = dismiss_once
