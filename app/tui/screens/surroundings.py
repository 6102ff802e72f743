"""Objects that every screen next to the chat is made from, the settings in effect among them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from textual.screen import Screen

from app.chat.bridge import EngineBridge
from app.chat.turns import Turns
from app.conversations.journal import AtHand
from app.documents.read import Document
from app.downloads.background import BackgroundDownload
from app.program import settings_file
from app.program.settings import Settings, taken_from, value_of, written
from app.text.record import record
from app.tui.keymap import Keymap
from app.tui.shelf_reading import ShelfReading
from app.tui.speed.watch import PerformanceWatch

AT_ONCE = ("model_directories", "theme", "prefill_while_typing", "search_by_meaning", "write_titles", "notify")
"""Settings that are looked at each time they matter, other than those of ``[sampling]``."""
_THREADS = {"threads": "decode", "prefill_threads": "prefill"}


class LiveSettings:
    """The settings in effect, as ``now``; other threads and sampling go to the bridge, a theme to ``show_theme``.

    What does not follow a change at once holds from the next start.
    """

    def __init__(self, now: Settings, bridge: EngineBridge, show_theme: Callable[[str], object]) -> None:
        self.now, self._bridge, self._show_theme = now, bridge, show_theme

    def change(self, key: str, value: object) -> str:
        """Write a setting, None for its default, and use it if possible; return a line on it, or raise ``Refusal``."""
        in_file = settings_file.changed(self.now, key, value)
        new = value_of(in_file, key)
        shown = written(new) or "nothing"
        what = f"{key} = {shown}" if value is not None else f"{key} is the default again"
        return f"{what}, {'from now on' if self._take(key, new, in_file) else 'from the next start'}"

    def _take(self, key: str, value: object, in_file: Settings) -> bool:
        if key in _THREADS:
            return isinstance(value, int) and value > 0 and self._wish_threads(key, value, in_file)
        if key not in AT_ONCE and not key.startswith("sampling."):
            return False
        self.now = taken_from(self.now, key, in_file)
        if key == "theme" and value:
            self._show_theme(str(value))
        elif key.startswith("sampling.") and self._bridge.generation is not None:
            self._bridge.generation.use(self.now)
        return True

    def _wish_threads(self, key: str, n_threads: int, in_file: Settings) -> bool:
        in_use = self._bridge.threads
        if in_use is None or n_threads > in_use.most:
            return False
        self.now = taken_from(self.now, key, in_file)
        changed: dict[str, Any] = {_THREADS[key]: n_threads}
        self._bridge.wish_threads(replace(in_use, now=replace(in_use.now, **changed)))
        return True


@record
class Surroundings:
    """The engine, the conversation in the chat, and what the application does for its screens."""

    live: LiveSettings
    keymap: Keymap
    bridge: EngineBridge
    turns: Turns
    at_hand: AtHand
    watch: PerformanceWatch
    downloads: BackgroundDownload
    open_model: Callable[..., bool]
    """Opens a model in the chat, as ``JalopyApp.open_model``; False while the engine is busy."""
    open_conversation: Callable[[str], object]
    """Opens a saved conversation in the chat, given its id."""
    shelf: ShelfReading
    ask_about: Callable[[Document | str], object]
    """Begins a conversation in the chat that a document goes with, or a file."""
    delete_live: Callable[[], Awaitable[str]]
    """Deletes the conversation in the chat, where a new one begins; returns why that cannot be, or ""."""

    @property
    def settings(self) -> Settings:
        """Those in effect; the settings screen may change them."""
        return self.live.now


def make_screen(mode: str, *arguments: object, kind: str = "") -> Screen[Any]:
    """Import a screen when it is first shown, and make it: ``models.ModelsScreen`` for "models", or its ``kind``."""
    make = getattr(import_module(f"{__package__}.{mode}"), kind or f"{mode.capitalize()}Screen")
    screen: Screen[Any] = make(*arguments)
    return screen
