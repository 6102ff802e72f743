"""Messages that cross widgets; each names what has happened. What the engine reports comes in one
of them.

Text in them is clean already (``clean_text``) unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.events import Key, Paste
from textual.message import Message

from app.session.events import Event
from app.tui.chat.draft import MAX_PASTE_CHARS, Draft


@dataclass(eq=False, repr=False)
class PromptSubmitted(Message):
    """The user sent what stood in the prompt."""

    draft: Draft


class PasteRefused(Message):
    """The user pasted more than is taken."""

    line = f"not pasted: more than {MAX_PASTE_CHARS:,} characters, which no context holds"


class PasteUnended(Message):
    """The terminal did not say where a paste ends; what came of it is handed over."""

    line = (
        "the terminal did not say where the paste ends: press one key, and after half a second "
        "keys count again"
    )


class EmptySubmitted(Message):
    """The user pressed the key that sends, and there is no text."""


class TakeBackRequested(Message):
    """The user wants the message back that waits for its turn."""


@dataclass(eq=False, repr=False)
class TranscriptScrolled(Message):
    """The user asked from the prompt to move through the transcript, by pages; negative is up, 0
    the end."""

    pages: int


@dataclass(eq=False, repr=False)
class MessageBlurred(Message):
    """The user went from a focused message back to the prompt."""

    event: Key | Paste | None = None
    """The key or paste that led away; it is handed to the prompt."""


@dataclass(eq=False, repr=False)
class LinkChosen(Message):
    """The user chose a link in a reply; nothing opens by itself."""

    address: str


@dataclass(eq=False, repr=False)
class EngineReported(Message):
    """The engine's thread has reported something."""

    event: Event
