"""Conversations that outlive the program, in the chat: saving, resuming, opening another one, going on with a copy."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from app import figures
from app.bridge import EngineBridge
from app.clean_text import clean_line
from app.context_room import ANNOUNCED_SHARE
from app.conversation import ChatMessage, Role
from app.conversations.at_hand import AtHand
from app.conversations.keeper import cause_of
from app.conversations.log_file import LogRefusedError
from app.conversations.quota import drop_oldest_states
from app.conversations.recent import last_used, model_key
from app.conversations.replay import MOST_TITLE_CHARS
from app.conversations.rows import moment_text
from app.conversations.store import Opened
from app.events import ConversationTakenUp, GenerationFinished, TurnsDropped
from app.screens.message_actions import MessageActions
from app.widgets.message_view import MessageView, ReplyView, UserView

_DROPPED_ABOVE = "---- what stands above is no part of the context any more ----"
DROP_STATES_PERIOD_S = 60.0
"""So long the states may be larger together than they should."""
WORTH_A_LINE_TOKENS = 32
"""Fewer tokens that must be read again are not mentioned."""


class ConversationFlow(MessageActions):
    """The part of the chat that knows which conversation is live."""

    conversations: AtHand
    _bridge: EngineBridge

    def __init__(self) -> None:
        super().__init__()
        self._told_trouble = self._told_state_trouble = ""
        self._is_announced = False
        self._dropped_states_s = -DROP_STATES_PERIOD_S

    # ---- saving

    def save_what_comes(self) -> None:
        """Save what there is of a running reply, and say once when saving fails and when it works again."""
        self.turns.save_partial()
        self._tell_state_trouble()
        trouble = self.turns.journal.trouble
        if trouble == self._told_trouble:
            return
        if not trouble:
            self.note("the conversation is saved again")
        elif not self._told_trouble:
            self.note(f"conversation not saved: {trouble}. It goes on here, and saving is tried again.", is_error=True)
        self._told_trouble = trouble

    def _tell_state_trouble(self) -> None:
        trouble = self._bridge.state_trouble
        if trouble and trouble != self._told_state_trouble:
            self.note(f"the KV cache is not kept for the next start: {trouble}")
        self._told_state_trouble = trouble or self._told_state_trouble

    def drop_old_states(self, _: GenerationFinished) -> None:
        """Delete the states used longest ago, where all together take more than they may."""
        at_hand, now_s = self.conversations, self._bridge.now_s()
        if at_hand.store is None or now_s - self._dropped_states_s < DROP_STATES_PERIOD_S:
            return
        self._dropped_states_s = now_s
        arguments = at_hand.store, at_hand.prefixes, at_hand.quota_bytes, self._bridge.state_file
        threading.Thread(target=drop_oldest_states, args=arguments, name="jalopy-quota", daemon=True).start()

    # ---- going on with one

    def resume_last(self, model_path: Path) -> bool:
        """Show the conversation that was used last with a model; False where there is none, or it is not wanted."""
        at_hand = self.conversations
        if not at_hand.resumes or at_hand.store is None:
            return False
        last = last_used(at_hand.store, model_key(model_path))
        opened = self._open(last) if last is not None else None
        if opened is None or not self._take(opened):
            return False
        self.call_later(self._show_saved, opened)
        return True

    async def open_conversation(self, conversation_id: str) -> None:
        """Go on with a saved conversation in place of the present one."""
        if self._refuses_while_busy() or conversation_id == self.turns.journal.id:
            return
        opened = self._open(conversation_id)
        if opened is None:
            return
        if not self._take(opened):
            self._note_busy()
            return
        await self._clear_transcript()
        await self._show_saved(opened)
        self._go_to_prompt()

    def _open(self, conversation_id: str) -> Opened | None:
        assert self.conversations.store is not None
        try:
            return self.conversations.store.open(conversation_id)
        except (LogRefusedError, OSError) as error:
            self.note(f"conversation {conversation_id} cannot be opened: {cause_of(error)}", is_error=True)
            return None

    def _take(self, opened: Opened) -> bool:
        """Go on with it; False while the engine is busy, and then its log is closed again."""
        is_taken = self.turns.open_saved(opened)
        if not is_taken and opened.log is not None:
            opened.log.close()
        return is_taken

    async def _show_saved(self, opened: Opened) -> None:
        conversation = opened.saved.conversation
        await self._fill_transcript()
        key = self._habits.keymap.first_key("app.conversations")
        others = f"{key} lists the others" if key else "/conversations lists the others"
        day = moment_text(opened.saved.changed) or "an unknown day"
        self.note(f"{opened.saved.shown_title} · from {day} · /new starts another, {others}")
        if opened.notice:
            self.note(opened.notice, is_error=True)
        if opened.saved.unsent and not self.prompt.text:
            self.prompt.give_back(opened.saved.unsent)
            self.note("the message in the prompt was sent in place of an earlier one, but not answered any more")
        elif conversation.awaits_reply:
            self.note("the last message was not answered (/regen asks again)")
        elif self.turns.can_continue:
            self.note("the last reply is not complete (/continue goes on with it)")

    async def _fill_transcript(self) -> None:
        """Show the live conversation where nothing is shown yet."""
        conversation = self.turns.conversation
        self._is_announced = False
        await self.transcript.fill(conversation.messages, _view_of)
        if 0 < conversation.n_dropped < len(conversation.messages):
            self.transcript.divide(conversation.messages[conversation.n_dropped], _DROPPED_ABOVE)

    # ---- a context that fills

    def announce_full_context(self, _: GenerationFinished) -> None:
        """Say once, before the context is full, what will happen and what else can be done."""
        status = self._bridge.status
        used, n_ctx = status.context_used, status.n_ctx
        if self._is_announced or not n_ctx or used < ANNOUNCED_SHARE * n_ctx or used >= n_ctx:
            return
        self._is_announced = True
        self.note(figures.context_nearly_full(used, n_ctx))

    def tell_dropped(self, message: TurnsDropped) -> None:
        """Say which turns the model does not know any more, and mark where they end."""
        first = self.turns.note_dropped(message.n_turns)
        if first is not None:
            self.transcript.divide(first, _DROPPED_ABOVE)
        self.note(figures.dropped_turns(message.n_turns, message.n_tokens, message.read_tokens, message.read_s))
        self._is_announced = False

    def tell_taken_up(self, message: ConversationTakenUp) -> None:
        """Say what of the conversation is in the cache, and what that saved."""
        if message.trouble:
            self.note(message.trouble, is_error=True)
        if message.restored_tokens:
            instead = f" instead of about {figures.whole_seconds(message.read_s)}" if message.read_s else ""
            tokens = figures.count(message.restored_tokens)
            self.note(f"resumed {tokens} tokens in {figures.seconds(message.restored_s)}{instead}")
        unread = message.total_tokens - message.ready_tokens
        if unread >= WORTH_A_LINE_TOKENS:
            self.note(f"{figures.count(unread)} tokens of it are read with the next message")

    # ---- what the user asks for

    def what_new_means(self) -> str:
        """Say what became of the conversation before a new one."""
        if self.conversations.store is None:
            return "A new conversation; the old one is gone: conversations are not saved."
        key = self._habits.keymap.first_key("app.conversations")
        return f"A new conversation; {key or '/conversations'} lists the earlier ones."

    def action_rename(self, title: str) -> None:
        """Give the conversation a title."""
        title = clean_line(" ".join(title.split()), MOST_TITLE_CHARS)
        if self.turns.journal.rename(self.turns.conversation, title):
            self.note(f"title: {title}")
        else:
            self.note("the conversation gets a title when it has begun: nothing is saved yet")

    async def fork_at(self, view: MessageView) -> None:
        """Go on with a copy of the conversation that ends with the turn of this message."""
        index = self._index_of(view)
        if index is None or self._refuses_while_busy():
            return
        if self.conversations.store is None:
            self.note("no copy is made: conversations are not saved, and what follows here would be lost")
            return
        before = self.turns.journal.title
        n_messages = min(len(self.turns.conversation.messages), index - index % 2 + 2)
        if not self.turns.fork(n_messages):
            self._note_busy()
            return
        await self._clear_transcript()
        await self._fill_transcript()
        self._go_to_prompt()
        self.note(f"a copy of the first {n_messages} messages; the conversation they are from is kept: {before}")

    def save_what_there_is(self) -> None:
        """Save what there is of a running reply, whatever else is wrong."""
        with suppress(Exception):
            self.turns.save_partial()

    def end_saving(self, patience_s: float) -> str:
        """Save everything and let go; returns why that failed, or ""."""
        return self.turns.journal.close(patience_s)

    async def _clear_transcript(self) -> None:
        if not self.cancel_edit():
            self._end_edit()
        self._asked, self._replaced = None, []
        await self.transcript.clear(self._queued)


def _view_of(message: ChatMessage) -> MessageView:
    """Return the widget of a message that was saved."""
    if message.role is Role.USER:
        user = UserView(message.text, message.folded)
        user.message = message
        return user
    view = ReplyView(message.text)
    view.message = message
    if message.thinking is not None:
        view.think(message.thinking.text)
        view.finish_thinking(message.thinking)
    footer = figures.reply_footer(message.figures, message.ending, is_edited=message.is_edited)
    view.show_footer(footer if message.text else f"(no answer yet) {footer}".rstrip())
    return view
