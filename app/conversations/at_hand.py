"""The saved conversations, as far as the settings want any."""

from __future__ import annotations

from dataclasses import field

from app.conversations.journal import Journal
from app.conversations.store import Store
from app.program.settings import Settings
from app.text.record import record


@record
class AtHand:
    """The saved conversations."""

    journal: Journal = field(default_factory=Journal)
    """Saves the live one."""
    store: Store | None = None
    """All of them; None where nothing is saved."""
    resumes: bool = False
    """Whether to go on with the last one at the start."""
    quota_bytes: int = 0
    """Limit on all saved states together; 0 keeps none."""


def conversations_at_hand(settings: Settings) -> AtHand:
    """Return what the settings want of them."""
    if settings.save_conversations == "off":
        return AtHand()
    store = Store()
    resumes, quota_bytes = settings.resume == "last", settings.kv_states_quota_bytes
    return AtHand(Journal(store), store, resumes, quota_bytes)
