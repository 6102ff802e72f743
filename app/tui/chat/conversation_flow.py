"""Conversations that outlive the program, in the chat: saving, resuming, opening another one, going
on with a copy."""

from __future__ import annotations

from asyncio import wrap_future
from functools import partial

from textual import on

from app.backend.local.context_room import ANNOUNCED_SHARE
from app.conversations.conversation import Ending
from app.conversations.list_rows import day_text
from app.conversations.locks import NO_LOCKS, StoreError
from app.conversations.store import LoadedConversation, SavedConversation, model_key
from app.program.background import in_background
from app.program.bundled_model import is_starter
from app.program.remote_model import ModelPlace
from app.program.settings import NEW, OFFER
from app.session import commands
from app.session.events import ConversationTakenUp, TurnsDropped
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.chat.chat_view import GOES_ON, NOT_PART
from app.tui.chat.draft import Draft
from app.tui.chat.message_actions import MessageActions
from app.tui.chat.messages import EmptySubmitted
from app.tui.chat_options import may_write_titles
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import MessageView, Note

_DROPPED_ABOVE = "---- the model no longer sees what is above ----"
_TITLE_CHARS = 40
TIDY_PERIOD_S = 60.0
"""Seconds between two checks of what is saved."""
TITLE_PAUSE_S = 3.0
"""After a reply that nothing follows for so long, the model writes a title."""
MOST_TITLED_MESSAGES = 6
"""In a longer conversation no title is tried any more."""
WORTH_A_LINE_TOKENS = 32
"""Fewer tokens that must be read again are not mentioned."""


class ConversationFlow(MessageActions):
    """Knows which conversation is live, and tells the user what becomes of it."""

    _told_trouble = _told_state_trouble = ""
    _is_announced = _has_told_no_locks = False
    _continuing: tuple[str, Note] | None = None
    """Name and line of the conversation that is shown, until the engine has taken it up."""
    _offered = ""
    """Id of the conversation that Enter goes on with while nothing else was said."""
    _tidied_s = -TIDY_PERIOD_S

    # ---- saving

    def save_what_comes(self) -> None:
        """Save the running reply so far; say once when saving fails and once when it works
        again."""
        self.chat_session.save_partial()
        if (lost := self.engine_thread.state.state_trouble) and lost != self._told_state_trouble:
            self._told_state_trouble = lost
            self.note(f"the KV cache is not kept for the next start: {lost}")
        if (store := self.storage.store) is not None and (line := store.take_chat_notice()):
            self.note(line, is_error=True)
        if self.chat_session.journal.is_unlocked and not self._has_told_no_locks:
            self._has_told_no_locks = True
            self.note(NO_LOCKS)
        trouble = self.chat_session.journal.trouble
        if trouble == self._told_trouble:
            return
        if not trouble:
            self.note("the conversation is saved again")
        elif not self._told_trouble:
            self.note(
                f"conversation not saved: {trouble}. It goes on here, and saving is tried again.",
                is_error=True,
            )
        self._told_trouble = trouble

    def tidy(self) -> None:
        """Delete states that have no room, and look after the database."""
        storage = self.storage
        now_s = self.engine_thread.now_s()
        if storage.store is not None and now_s - self._tidied_s >= TIDY_PERIOD_S:
            self._tidied_s = now_s
            in_background(storage.tidy, "quota")

    # ---- the title

    def want_title(self) -> None:
        """Have the model write a title, if nothing else is asked."""
        if may_write_titles(self.settings):
            call_once(self, TITLE_PAUSE_S, self._ask_for_title)

    def _ask_for_title(self) -> None:
        model = self.chat_session.model
        chat_session = self.chat_session
        is_local = model is not None and not model.server and not is_starter(model.path)
        reply = chat_session.last_message
        is_sound = reply is not None and reply.ending not in (Ending.REPEATED, Ending.FAILED)
        is_early = len(chat_session.conversation.messages) <= MOST_TITLED_MESSAGES
        if chat_session.is_busy or self.prompt.text or not (is_local and is_sound and is_early):
            return
        journal = chat_session.journal
        is_wanted = journal.needs_title(chat_session.conversation)
        if is_wanted and not chat_session.request_title():
            # It is not on the disk yet, or other idle work comes first.
            call_once(self, TITLE_PAUSE_S, self._ask_for_title)

    # ---- going on with one

    def resume_last(self, model_path: ModelPlace) -> bool:
        """Show the conversation that was used last with a model, where a start is to go on with it;
        else False.

        What was sent in it and not answered, or is in the prompt again, belongs to it: that is
        never only offered.
        """
        last = self._last_used(model_path)
        if last is None or (
            self.storage.resume == OFFER and not (last[1].not_sent or self.prompt.text)
        ):
            return False
        opened = self._open(last[0])
        if opened is not None:
            self.call_later(self._show_saved, opened)
        return opened is not None

    def offer_last(self, model_path: ModelPlace | str) -> str:
        """Let Enter in an empty prompt go on with the one used last; returns its title and day, ""
        for none."""
        last = self._last_used(model_path)
        if last is None:
            return ""
        self._offered = last[0]
        return self._title_of(last[1])

    @on(EmptySubmitted)
    async def go_on_with_offered(self) -> None:
        """Open the conversation that was offered, unless another one has begun or a message is on
        its way here."""
        is_begun = (
            not self.chat_session.conversation.is_empty
            or self.transcript.waiting
            or self.prompt.unheeded
        )
        if self._offered and not is_begun:
            await self.open_conversation(self._offered)

    def _last_used(self, model_path: ModelPlace | str) -> tuple[str, SavedConversation] | None:
        """Return id and content of the conversation used last with a model; None where a start is
        to be empty."""
        store = self.storage.store
        # its context is for one try
        if store is None or self.storage.resume == NEW or is_starter(str(model_path)):
            return None
        try:
            last = store.last_used(model_key(model_path))
            if last is not None:
                return (last, store.read(last))
            return None
        except StoreError as error:
            self.note(f"the saved conversations cannot be used: {error}", is_error=True)
            return None

    def _title_of(self, saved: SavedConversation) -> str:
        day = day_text(saved.changed, self.chat_session.journal.clock_text())
        return f'"{clean_line(saved.title, _TITLE_CHARS)}"{f" ({day})" if day else ""}'

    async def open_conversation(self, conversation_id: str) -> None:
        """Go on with a saved conversation in place of the present one."""
        if self.refuses_while_busy() or conversation_id == self.chat_session.journal.id:
            return
        opened = self._open(conversation_id)
        if opened is not None:
            await self.clear_transcript()
            await self._show_saved(opened)
            self.focus_prompt()

    async def delete_live(self) -> str:
        """Delete the conversation, and begin a new one with its system prompt; returns why that
        cannot be, or ""."""
        assert self.storage.store is not None
        conversation_id = self.chat_session.start_new_to_delete()
        if conversation_id is None:
            return self.busy_line("in the chat ")
        await self.clear_transcript()
        try:
            if conversation_id:
                await wrap_future(
                    in_background(partial(self.storage.store.delete, conversation_id), "delete")
                )
        except StoreError as error:
            return str(error)
        self.note("A new conversation; the one before is deleted.")
        return ""

    def _open(self, conversation_id: str) -> LoadedConversation | None:
        """Go on with a saved conversation, while the engine is not busy; None where it cannot be
        opened."""
        assert self.storage.store is not None
        try:
            opened = self.storage.store.open(conversation_id)
        except StoreError as error:
            self.note(f"conversation {conversation_id} cannot be opened: {error}", is_error=True)
            return None
        self.chat_session.open_saved(opened)
        return opened

    async def _show_saved(self, opened: LoadedConversation) -> None:
        await self._fill_transcript()
        which = f"continuing {self._title_of(opened.saved)}"
        self._continuing = which, self.note(f"{which} · /new")
        if opened.notice:
            self.note(opened.notice, is_error=True)
        if opened.saved.not_sent:
            self._bring_back(opened.saved)
        elif (
            opened.saved.conversation.awaits_reply
            and not opened.saved.conversation.messages[-1].results
        ):
            self.note(
                "the last message was not answered: "
                "/regen asks again, and another message goes with it"
            )
        elif self.chat_session.can_continue and (views := self.transcript.replies()):
            views[-1].offer(GOES_ON)

    def _bring_back(self, saved: SavedConversation) -> None:
        """Put an unanswered message back into the prompt, or, if a draft is there, into the history
        that Up recalls."""
        prompt = self.prompt
        text = saved.not_sent
        where = "it is back in the prompt"
        if not prompt.text:
            prompt.give_back(text)
        elif prompt.draft.text.strip() != text.strip():
            prompt.past.add(prompt.past.find(text) or Draft(text))
            where = f"{self.keymap.first_key('prompt.older') or 'Up'} recalls it"
        self.chat_session.unsent_texts = []  # it stays in the log until something else is asked
        if saved.waiting:
            what = "A queued message was not sent"
        else:
            what = "Your edit was not answered"
        self.note(f"{what} before Jalopy closed; {where}.")

    async def _fill_transcript(self) -> None:
        conversation = self.chat_session.conversation
        self._is_announced = False
        await self.transcript.fill(conversation.messages)
        if 0 < conversation.n_dropped < len(conversation.messages):
            self.transcript.divide(conversation.messages[conversation.n_dropped], _DROPPED_ABOVE)

    # ---- a context that fills

    def announce_full_context(self) -> None:
        """Say once, before the context is full, what will happen and what else can be done."""
        status = self.engine_thread.status
        model = self.chat_session.model
        used = status.context_used
        n_ctx = status.n_ctx
        if not self._is_announced and ANNOUNCED_SHARE * n_ctx <= used < n_ctx:
            self._is_announced = True
            self.note(
                figures.context_nearly_full(
                    used, n_ctx, model is not None and model.context_may_grow
                )
            )

    def tell_dropped(self, message: TurnsDropped) -> None:
        """Say which turns the model does not know any more, and mark where they end."""
        first = self.chat_session.first_in_context
        if first is not None:
            self.transcript.divide(first, _DROPPED_ABOVE)
        self.note(
            figures.dropped_turns(
                message.n_turns, message.n_tokens, message.read_tokens, message.read_s
            )
        )
        self._is_announced = False

    def tell_taken_up(self, message: ConversationTakenUp) -> None:
        """Say what of the conversation is in the cache, and what that saved, in the line that names
        it."""
        if message.trouble:
            self.note(message.trouble, is_error=True)
        unread = message.total_tokens - message.ready_tokens
        parts = []
        if message.restored_tokens:
            parts.append(figures.back(message.restored_tokens, message.restored_s, message.read_s))
        if unread >= WORTH_A_LINE_TOKENS:
            parts.append(f"{figures.count(unread)} tokens are read with the next message")
        if parts:
            is_news = message.restored_tokens and figures.saves_much(
                message.restored_s, message.read_s
            )
            if is_news:
                kind = "news"
            else:
                kind = ""
            if self._continuing is None:
                self.note(" · ".join(parts), kind=kind)
            else:
                (which, note) = self._continuing
                self._continuing = None
                note.say(" · ".join((which, *parts, "/new")), kind)

    # ---- what the user asks for

    async def action_new(self) -> None:
        """Start a new conversation."""
        became = f"{self.keymap.key_or_command('app.conversations')} lists the earlier ones."
        if self.storage.store is None:
            became = "the old one is gone: conversations are not saved."
        await self._start_new(
            self.chat_session.conversation.system, f"A new conversation; {became}"
        )

    async def action_persona(self, wanted: str = "") -> None:
        """List the personas, begin a new conversation with one, or keep the present choice as
        one."""
        if wanted and self.refuses_while_busy():
            return
        with self.telling_refusals():
            chosen = commands.choose_among_personas(self.chat_session, self.engine_thread, wanted)
            if chosen.persona is None:
                self.note(chosen.line)
                return
            said = " · ".join(filter(None, (chosen.line, clean_line(chosen.persona.system, 200))))
            await self._start_new(chosen.persona.system or None, f"persona {wanted}: {said}")

    async def action_system(self, text: str = "") -> None:
        """Show or set the system prompt."""
        system = self.chat_session.conversation.system
        if not text:
            self.note(
                f"system prompt: {system}"
                if system
                else "There is no system prompt; /system TEXT sets one."
            )
            return
        if self.chat_session.conversation.is_empty:
            consequence = ""
        else:
            consequence = " (a new conversation)"
        system = commands.new_system(text)
        await self._start_new(system, f"system prompt: {system or 'none'}{consequence}")

    async def _start_new(self, system: str | None, note: str) -> None:
        if not self.chat_session.start_new(system):
            self.note(self.busy_line())
            return
        await self.clear_transcript()
        self.note(note)

    def action_rename(self, title: str) -> None:
        """Give the conversation a title."""
        self.note(commands.rename(self.chat_session, title))

    def action_save(self, wanted: str = "") -> None:
        """Save the conversation as Markdown; with "+thinking" at the end, what the model thought
        too."""
        with self.telling_refusals(is_error=not self.chat_session.conversation.is_empty):
            self.note(commands.export(self.chat_session, wanted))

    async def fork_here(self, view: MessageView) -> None:
        """Go on with a copy of the conversation that ends with the turn of this message."""
        index = self.index_of(view)
        if index is None:
            self.note(NOT_PART)
            return
        if self.refuses_while_busy():
            return
        if self.storage.store is None:
            self.note(
                "no copy is made: conversations are not saved, and what follows here would be lost"
            )
            return
        before = self.chat_session.journal.title
        n_messages = min(len(self.chat_session.conversation.messages), index - index % 2 + 2)
        self.chat_session.fork(n_messages)
        await self.clear_transcript()
        await self._fill_transcript()
        self.focus_prompt()
        self.note(
            f"a copy of the first {n_messages} messages; "
            f"the conversation they are from is kept: {before}"
        )

    async def clear_transcript(self) -> None:
        """Show nothing but the messages that wait."""
        self.cancel_edit()
        self.hint()
        self.forget_turn()
        self._continuing = None
        self._offered = ""
        await self.transcript.clear()
