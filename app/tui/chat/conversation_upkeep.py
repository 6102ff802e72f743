"""Upkeep of the open conversation: saving it, tidying the disk, and requesting a title."""

from __future__ import annotations

from app.conversations.conversation import Ending
from app.conversations.locks import NO_LOCKS
from app.program.background import in_background
from app.program.bundled_model import is_starter
from app.tui.chat.core import ChatCore
from app.tui.chat_options import may_write_titles
from app.tui.textual_hacks import call_once

TIDY_PERIOD_S = 60.0
"""Seconds between two checks of the disk."""
TITLE_PAUSE_S = 3.0
"""Seconds without a message after a reply before the model writes a title."""
MAX_TITLED_MESSAGES = 6
"""Longer conversations are given no title by the model."""


class ConversationUpkeep:
    """Saves the open conversation, and says when that fails."""

    def __init__(self, core: ChatCore) -> None:
        self._core = core
        self._trouble = ""
        """Reason why saving fails, as the user was told; "" if it works."""
        self._state_trouble = ""
        """Reason why the KV cache is not saved, as the user was told."""
        self._has_said_no_locks = False
        self._tidied_s = -TIDY_PERIOD_S

    def save(self) -> None:
        """Save the reply so far; say once when saving fails, and once when it works again."""
        core = self._core
        core.chat_session.save_partial()

        state_trouble = core.engine_thread.state.state_trouble
        if state_trouble and state_trouble != self._state_trouble:
            self._state_trouble = state_trouble
            core.say(f"the KV cache is not kept for the next start: {state_trouble}")
        store = core.storage.store
        notice = store.take_chat_notice() if store is not None else ""
        if notice:
            core.say(notice, is_error=True)
        if core.chat_session.journal.is_unlocked and not self._has_said_no_locks:
            self._has_said_no_locks = True
            core.say(NO_LOCKS)
        self._say_trouble(core.chat_session.journal.trouble)

    def _say_trouble(self, trouble: str) -> None:
        if trouble == self._trouble:
            return
        if not trouble:
            self._core.say("the conversation is saved again")
        elif not self._trouble:
            self._core.say(
                f"conversation not saved: {trouble}. It goes on here, and saving is tried again.",
                is_error=True,
            )
        self._trouble = trouble

    def tidy(self) -> None:
        """Delete saved states above the limit, and maintain the database."""
        storage = self._core.storage
        now_s = self._core.engine_thread.now_s()
        if storage.store is not None and now_s - self._tidied_s >= TIDY_PERIOD_S:
            self._tidied_s = now_s
            in_background(storage.tidy, "quota")

    def request_title_soon(self) -> None:
        """Let the model write a title once the user pauses."""
        if may_write_titles(self._core.settings):
            call_once(self._core.screen, TITLE_PAUSE_S, self._request_title)

    def _request_title(self) -> None:
        chat_session = self._core.chat_session
        model = chat_session.model
        reply = chat_session.last_message
        is_local = model is not None and not model.server and not is_starter(model.path)
        is_sound = reply is not None and reply.ending not in (Ending.REPEATED, Ending.FAILED)
        is_short = len(chat_session.conversation.messages) <= MAX_TITLED_MESSAGES
        is_free = not chat_session.is_busy and not self._core.prompt.text
        if not (is_free and is_local and is_sound and is_short):
            return
        if (
            chat_session.journal.needs_title(chat_session.conversation)
            and not chat_session.request_title()
        ):
            # The conversation is not on the disk yet, or other idle work comes first.
            call_once(self._core.screen, TITLE_PAUSE_S, self._request_title)
