"""Asks what becomes of the conversation when another model is opened in its middle, and names the price."""

from __future__ import annotations

from typing import Literal

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.text import figures
from app.tui.bindings import bindings
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once

Answer = Literal["keep", "anew"]


def price_line(n_tokens: int, prefill_tps: float | None, host: str = "") -> str:
    """Say what going on with the conversation costs."""
    if host:
        return f"All of the conversation is sent to {host} then, with each message."
    takes = "; how long that takes is not known yet"
    if prefill_tps:
        takes = f": about {figures.whole_seconds(n_tokens / prefill_tps)}"
    size = f"The conversation has about {figures.count(n_tokens)} tokens by the present model's count"
    return f"{size}. The new model must read all of it{takes}."


class SwitchModelScreen(ModalScreen[Answer | None]):
    """Dismissed with what to do, or with None for nothing. The model's title is clean; a server's has a host."""

    CSS_PATH = "switch_model.tcss"
    BINDINGS = bindings("switch")

    def __init__(self, title: str, n_tokens: int, prefill_tps: float | None, keymap: Keymap, host: str = "") -> None:
        super().__init__()
        self._title, self._price, self._keymap = title, price_line(n_tokens, prefill_tps, host), keymap

    def compose(self) -> ComposeResult:
        """Lay out question and keys."""
        key = self._keymap.first_key
        with Vertical(id="switch-model") as box:
            box.border_title = "Another model"
            yield Static(f"Open {self._title}?", markup=False, classes="switch-question")
            yield Static(self._price, markup=False)
            answers = {"keep": "go on with it", "anew": "begin a new conversation", "leave": "open nothing"}
            lines = [f"{key(f'switch.{name}'):<6} {words}" for name, words in answers.items()]
            yield Static("\n".join(lines), markup=False, classes="switch-keys")

    def action_keep(self) -> None:
        """Go on with the conversation."""
        dismiss_once(self, "keep")

    def action_anew(self) -> None:
        """Begin a new one."""
        dismiss_once(self, "anew")

    def action_leave(self) -> None:
        """Open nothing."""
        dismiss_once(self, None)
