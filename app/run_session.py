"""``jalopy run --session``: which saved conversation the shell goes on with. No Textual."""

from __future__ import annotations

from app import exit_codes, paths
from app.clean_text import clean_line
from app.conversations.at_hand import AtHand
from app.conversations.journal import Journal
from app.conversations.keeper import cause_of
from app.conversations.log_file import IN_USE, LogRefusedError
from app.conversations.replay import MOST_TITLE_CHARS
from app.conversations.store import Opened, Store
from app.refusals import Refusal, say
from app.settings import Settings
from app.talk import Talk


def session_at_hand(settings: Settings) -> AtHand:
    """Return the saved conversations, whatever the settings say of the chat's: the user names one."""
    store = Store()
    return AtHand(Journal(store), store, False, settings.kv_states_quota_bytes, paths.prefixes_dir())


def go_on_with(name: str, talk: Talk) -> Opened | None:
    """Open the conversation with this title or number; None where one with this title begins.

    Raises:
        Refusal: it is in use or cannot be used.
    """
    store = talk.store or Store()
    found = store.find(name)
    if found is None:
        talk.turns.journal.begin(title=clean_line(" ".join(name.split()), MOST_TITLE_CHARS))
        return None
    opened = _open(store, found, name)
    system = talk.turns.conversation.system
    if system and system != opened.saved.conversation.system:
        say("jalopy run: the conversation goes on with the system prompt that it began with")
    return opened


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
