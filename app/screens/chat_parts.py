"""What the helpers of the chat's screen share."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from app.bridge import EngineBridge
from app.keymap import Keymap
from app.record import record
from app.screens.drafting import Drafting
from app.screens.message_focus import MessageFocus
from app.screens.notes import Notes
from app.screens.turn_views import TurnViews
from app.turns import Turns
from app.widgets.prompt import Prompt
from app.widgets.transcript import Transcript


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
