"""Widgets and helpers of the chat screen, handed to each helper."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from app.chat.bridge import EngineBridge
from app.chat.turns import Turns
from app.text.record import record
from app.tui.keymap import Keymap
from app.tui.screens.drafting import Drafting
from app.tui.screens.message_focus import MessageFocus
from app.tui.screens.notes import Notes
from app.tui.screens.turn_views import TurnViews
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.transcript import Transcript


@record
class ChatParts:
    """The widgets of the chat, whose turn it is, and those who know one thing about them."""

    screen: Screen[Any]
    bridge: EngineBridge
    turns: Turns
    keymap: Keymap
    transcript: Transcript
    prompt: Prompt
    drafting: Drafting
    notes: Notes
    focus: MessageFocus
    views: TurnViews
