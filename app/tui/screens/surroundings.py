"""Objects that every screen beside the chat is made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from app.chat.bridge import EngineBridge
from app.chat.turns import Turns
from app.conversations.journal import AtHand
from app.downloads.background import BackgroundDownload
from app.program.settings import Settings
from app.text.record import record
from app.tui.keymap import Keymap
from app.tui.live_settings import LiveSettings
from app.tui.speed.watch import PerformanceWatch

if TYPE_CHECKING:
    from textual.screen import Screen

    from app.downloads.job import PullJob


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
    delete_live: Callable[[], Awaitable[str]]
    """Deletes the conversation in the chat, where a new one begins; returns why that cannot be, or ""."""
    look_after_download: Callable[[PullJob], None]
    """Lets a download go on wherever the user is."""

    @property
    def settings(self) -> Settings:
        """Those in effect; the settings screen may change them."""
        return self.live.now


def make_screen(mode: str, *arguments: object) -> Screen[Any]:
    """Import a screen when it is first shown, and make it: ``models.ModelsScreen`` for "models"."""
    screen: Screen[Any] = getattr(import_module(f"{__package__}.{mode}"), f"{mode.capitalize()}Screen")(*arguments)
    return screen
