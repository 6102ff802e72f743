"""Messages between widgets of the chat, and from the engine; each is named after an event.

Text in them is clean (``clean_text``) unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.events import Key, Paste
from textual.message import Message

from app.session.events import Event
from app.tui.chat.draft import MAX_PASTE_CHARS, Draft


@dataclass(eq=False, repr=False)
class PromptSubmitted(Message):
    """The user sent the text of the prompt."""

    draft: Draft


class PasteRefused(Message):
    """The user pasted more text than the limit."""

    line = f"not pasted: more than {MAX_PASTE_CHARS:,} characters, which no context holds"


class PasteUnended(Message):
    """The terminal did not mark the end of a paste; the text so far is pasted."""

    line = (
        "the terminal did not say where the paste ends: press one key, and after half a second "
        "keys count again"
    )


class EmptySubmitted(Message):
    """The user pressed the key that sends in an empty prompt."""


class TakeBackRequested(Message):
    """The user takes back the newest queued message."""


@dataclass(eq=False, repr=False)
class TranscriptScrolled(Message):
    """The user scrolled the transcript from the prompt."""

    pages: int
    """Number of pages, negative for up; 0 for the end."""


@dataclass(eq=False, repr=False)
class MessageBlurred(Message):
    """The user left a focused message for the prompt."""

    event: Key | Paste | None = None
    """Key or paste for the prompt; None if the user only went there."""


@dataclass(eq=False, repr=False)
class LinkChosen(Message):
    """The user clicked a link in a reply."""

    address: str


@dataclass(eq=False, repr=False)
class EngineReported(Message):
    """The engine thread reported an event."""

    event: Event
