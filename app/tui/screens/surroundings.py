"""Objects that every screen beside the chat is made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.chat.bridge import EngineBridge
from app.chat.turns import Turns
from app.conversations.at_hand import AtHand
from app.downloads.background import BackgroundDownload
from app.program.remote_model import ModelPlace
from app.program.settings import Settings
from app.text.record import record
from app.tui.keymap import Keymap
from app.tui.live_settings import LiveSettings
from app.tui.speed.watch import PerformanceWatch

if TYPE_CHECKING:
    from textual.screen import Screen

    from app.downloads.job import PullJob
    from app.library.listing import Outlook


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
    open_model: Callable[[ModelPlace, str, Outlook | None], bool]
    """Opens a model in the chat, given its title and how fast it may be; False while the engine is busy."""
    open_conversation: Callable[[str], object]
    """Opens a saved conversation in the chat, given its id."""
    delete_live: Callable[[], Awaitable[str]]
    """Deletes the conversation in the chat, where a new one begins; returns why that cannot be, or ""."""
    look_after_download: Callable[[PullJob], None]
    """Lets a download go on wherever the user is."""
    inspect_screen: Callable[[Path, str, Surroundings], Screen[Any]]
    download_screen: Callable[[PullJob, Surroundings], Screen[str | None]]
    """Make the screens that a list shows above itself: screens do not know each other."""

    @property
    def settings(self) -> Settings:
        """Those in effect; the settings screen may change them."""
        return self.live.now
