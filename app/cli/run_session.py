"""``jalopy run --session``: which saved conversation the shell goes on with. No Textual."""

from __future__ import annotations

from contextlib import suppress

from app.chat.talk import SAVING_PATIENCE_S, Talk
from app.chat.turns import Turns
from app.cli.progress_line import ProgressLine
from app.conversations.journal import AtHand, Journal
from app.conversations.keeper import cause_of
from app.conversations.log_file import IN_USE, LogRefusedError
from app.conversations.replay import MOST_TITLE_CHARS
from app.conversations.store import Opened, Store
from app.conversations.summary import remembered_title
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.program.settings import Settings
from app.text.clean_text import clean_line


class SavingWatch:
    """Says when saving fails, while the answer comes: at its end a full disk can be emptied no more."""

    def __init__(self, progress: ProgressLine) -> None:
        self._progress = progress
        self._told = ""

    def look(self, trouble: str) -> None:
        """Say why nothing is saved at present, once for each reason; "" while all is well."""
        if trouble and trouble != self._told:
            self._progress.clear()
            say(f"jalopy run: conversation not saved: {trouble}. The answer goes on, and saving is tried again.")
        self._told = trouble or self._told

    def end(self, trouble: str) -> bool:
        """Say what became of it; whether it is not saved."""
        if trouble:
            say(f"jalopy run: conversation not saved: {trouble}")
        elif self._told:
            say("jalopy run: the conversation is saved after all")
        return bool(trouble)


def session_at_hand(settings: Settings) -> AtHand:
    """Return the saved conversations, whatever the settings say of the chat's: the user names one."""
    store = Store()
    return AtHand(Journal(store), store, False, settings.kv_states_quota_bytes)


def go_on_with(name: str, talk: Talk) -> Opened | None:
    """Open the conversation with this title or number; None where one with this title begins.

    Raises:
        Refusal: it is in use or cannot be used.
    """
    store = talk.store or Store()
    try:
        with store.alone():  # of programs that start at once, one begins the conversation
            found = store.find(name)
            if found is None:
                _tell_unreadable(store)
                _claim(name, talk.turns)
                return None
    except (LogRefusedError, OSError) as error:
        raise Refusal(f"jalopy run: {cause_of(error)}", exit_codes.IO_ERROR) from None
    opened = _open(store, found, name)
    system = talk.turns.conversation.system
    if system and system != opened.saved.conversation.system:
        say("jalopy run: the conversation goes on with the system prompt that it began with")
    return opened


def drop_unused(talk: Talk, conversation_id: str) -> None:
    """Delete a conversation that was begun for a message which did not come to be in it; call it after closing."""
    if conversation_id and talk.store is not None and talk.turns.conversation.is_empty:
        with suppress(LogRefusedError, OSError):  # it stays, empty, and the next call goes on with it
            talk.store.delete(conversation_id)


def _claim(name: str, turns: Turns) -> None:
    """Take the title of a new conversation before anything is said in it."""
    turns.journal.begin(title=clean_line(" ".join(name.split()), MOST_TITLE_CHARS))
    turns.journal.claim(turns.conversation, SAVING_PATIENCE_S)


def _tell_unreadable(store: Store) -> None:
    """Say that a conversation that cannot be read might have been the one that is wanted."""
    unknown = [str(int(one)) for one, title in store.unreadable() if not title]
    if unknown:
        which = f"conversation {unknown[0]}" + (f" and {len(unknown) - 1} more" if unknown[1:] else "")
        say(f"jalopy run: begins a new conversation; {which} cannot be read, nor what it was called")


def _open(store: Store, conversation_id: str, name: str) -> Opened:
    shown = clean_line(name, 40)
    try:
        opened = store.open(conversation_id)
    except (LogRefusedError, OSError) as error:
        raise Refusal(f"jalopy run: conversation {shown}: {cause_of(error)}", exit_codes.IO_ERROR) from None
    if opened.log is not None and not opened.log.size and remembered_title(opened.log.path.parent):
        opened.log.close()
        cure = "delete it in the chat's list, or choose another name"
        raise Refusal(f"jalopy run: conversation {shown}: its file is empty ({cure})", exit_codes.IO_ERROR)
    if opened.log is None:
        is_elsewhere = opened.obstacle.startswith(IN_USE)
        cure = "close it there first" if is_elsewhere else "leave --session out, or see to that"
        raise Refusal(f"jalopy run: conversation {shown}: {opened.obstacle} ({cure})", exit_codes.IO_ERROR)
    if opened.notice:
        say(f"jalopy run: {opened.notice}")
    return opened
