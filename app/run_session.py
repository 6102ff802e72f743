"""``jalopy run --session``: which saved conversation the shell goes on with. No Textual."""

from __future__ import annotations

from app import exit_codes
from app.clean_text import clean_line
from app.conversations.keeper import cause_of
from app.conversations.log_file import IN_USE, LogRefusedError
from app.conversations.replay import MOST_TITLE_CHARS
from app.conversations.store import Opened, Store
from app.kept_conversation import KeptConversation
from app.refusals import Refusal, say


def open_session(name: str, system: str, store: Store | None = None) -> KeptConversation:
    """Open the conversation with this title or number, or begin one with this title.

    Raises:
        Refusal: it is in use or cannot be used.
    """
    store = store or Store()
    kept = KeptConversation(store, "jalopy run")
    found = store.find(name)
    if found is None:
        kept.begin(system, clean_line(" ".join(name.split()), MOST_TITLE_CHARS))
        return kept
    kept.adopt(_open(store, found, name))
    if system and system != kept.conversation.system:
        say("jalopy run: the conversation goes on with the system prompt that it began with")
    return kept


def _open(store: Store, conversation_id: str, name: str) -> Opened:
    shown = clean_line(name, 40)
    try:
        opened = store.open(conversation_id)
    except (LogRefusedError, OSError) as error:
        raise Refusal(f"jalopy run: conversation {shown}: {cause_of(error)}", exit_codes.IO_ERROR) from None
    if opened.log is None:
        is_elsewhere = opened.obstacle.startswith(IN_USE)
        cure = "close it there first" if is_elsewhere else "leave --session out, or see to that"
        raise Refusal(f"jalopy run: conversation {shown}: {opened.obstacle} ({cure})", exit_codes.IO_ERROR)
    if opened.notice:
        say(f"jalopy run: {opened.notice}")
    return opened
