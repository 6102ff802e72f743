"""Conversations in the chat: resume, open, start, copy, name and export them."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from app.backend.local.context_room import ANNOUNCED_SHARE
from app.conversations.branches import find_message, show_place
from app.conversations.list_rows import day_text
from app.conversations.locks import StoreError
from app.conversations.store import (
    ConversationHead,
    LoadedConversation,
    SavedConversation,
    Store,
    model_key,
    show_branch_with,
)
from app.program.background import in_background
from app.program.bundled_model import is_starter
from app.program.remote_model import ModelPlace
from app.program.settings import NEW, OFFER
from app.session import commands
from app.session.events import ConversationResumed, TurnsDropped
from app.session.line_of import resumed_phrases
from app.session.reply_options import describe_options
from app.session.system_commands import reply_about_system, starting_line
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.chat.compacting import mark_of_context
from app.tui.chat.core import CONTINUE_OFFER, NO_REPLY, NOT_IN_CONVERSATION, ChatCore, TurnViews
from app.tui.chat.draft import draft_of
from app.tui.chat.editing import MessageEditing
from app.tui.chat.writer_choice import WriterChoice, other_writer, weigh
from app.tui.screens import make_screen
from app.tui.widgets.message_view import MessageView, Note

_TITLE_CHARS = 40
_OFFERED_TITLE_CHARS = 30
"""Limit on the title of the offered conversation, which has one row of the greeting."""


class ConversationFlow:
    """Changes which conversation the chat shows.

    Args:
        show_options: shows the options of the conversation in the title bar.
        begin_loading: shows that a model is opened for a saved conversation.
        find: finds a text from the message at an index on.
    """

    def __init__(
        self,
        core: ChatCore,
        turn_views: TurnViews,
        editing: MessageEditing,
        show_options: Callable[[], object],
        begin_loading: Callable[[], object],
        find: Callable[[str, int], Awaitable[None]],
    ) -> None:
        self._core = core
        self._turn_views = turn_views
        self._editing = editing
        self._show_options = show_options
        self._begin_loading = begin_loading
        self._find = find
        self._offered_id = ""
        """Id of the conversation that Enter in an empty prompt opens; "" for none."""
        self._opening_line: tuple[str, Note] | None = None
        """Title and line of an opened conversation, until the engine has restored it."""
        self._has_announced_limit = False
        """Whether the user knows that the context is nearly full."""

    # ---- opening a saved conversation

    def resume_last(self, model_path: ModelPlace, draft_conversation: str | None) -> bool:
        """Show the conversation that was last used with a model; False if there is none.

        The conversation in which the draft in the prompt was typed comes first. If the settings
        only offer the last one, it is shown if it has an unsent message or that draft.

        Args:
            draft_conversation: id of the conversation of that draft; None if it is not known.
        """
        last = self._drafted(model_path, draft_conversation) or self._last_used(model_path)
        if last is None:
            return False
        conversation_id, head = last
        is_only_offered = self._core.storage.resume == OFFER
        is_of_draft = draft_conversation in (None, conversation_id)
        if is_only_offered and not (head.text_to_resend or is_of_draft):
            return False
        opened = self._open_saved(conversation_id)
        if opened is not None:
            self._core.screen.call_later(self._show_saved, opened)
        return opened is not None

    def offer_last(self, model_path: ModelPlace | str) -> str:
        """Let Enter open the conversation that was last used with a model.

        Returns:
            Title and day of the conversation; "" if there is none.
        """
        last = self._last_used(model_path)
        if last is None:
            return ""
        conversation_id, head = last
        self._offered_id = conversation_id
        return self._title_of(head, _OFFERED_TITLE_CHARS)

    async def open_offered(self) -> None:
        """Open the offered conversation, unless another one has begun."""
        core = self._core
        has_begun = not core.chat_session.conversation.is_empty
        has_sent = bool(core.transcript.waiting or core.prompt.submitted)
        if self._offered_id and not has_begun and not has_sent:
            await self.open(self._offered_id)

    def _last_used(self, model_path: ModelPlace | str) -> tuple[str, ConversationHead] | None:
        """Return id and head of the conversation last used with a model.

        None if there is none, or if the program starts with an empty chat.
        """
        store = self._store_to_resume(model_path)
        if store is None:
            return None
        try:
            last_id = store.last_used(model_key(model_path))
            if last_id is None:
                return None
            return last_id, store.read_head(last_id)
        except StoreError as error:
            self._core.say(f"the saved conversations cannot be used: {error}", is_error=True)
            return None

    def _drafted(
        self, model_path: ModelPlace | str, conversation_id: str | None
    ) -> tuple[str, ConversationHead] | None:
        """Return id and head of the conversation of a draft; None if another model wrote it."""
        store = self._store_to_resume(model_path)
        if store is None or not conversation_id:
            return None
        with suppress(StoreError):  # it may be deleted by now
            head = store.read_head(conversation_id)
            if head.model_path == model_key(model_path):
                return conversation_id, head
        return None

    def _store_to_resume(self, model_path: ModelPlace | str) -> Store | None:
        """Return the saved conversations; None if the program starts with an empty chat."""
        storage = self._core.storage
        if storage.resume == NEW or is_starter(str(model_path)):
            return None
        return storage.store

    def _title_of(
        self, saved: SavedConversation | ConversationHead, n_chars: int = _TITLE_CHARS
    ) -> str:
        day = day_text(saved.changed, self._core.chat_session.journal.clock_text())
        title = f'"{clean_line(saved.title, n_chars)}"'
        return f"{title} ({day})" if day else title

    async def open(self, conversation_id: str, word: str = "") -> None:
        """Open a saved conversation in place of the present one.

        Args:
            word: word whose first message is shown, in another branch too; "" for the end.
        """
        core = self._core
        store = core.storage.store
        if core.refuses_while_busy():
            return
        if conversation_id == core.chat_session.journal.id:
            await self._show_message_with(word)
            return
        assert store is not None
        model = core.chat_session.model
        head = ConversationHead()
        with suppress(StoreError):  # opening it says what is wrong
            head = store.read_head(conversation_id)
        writer_path = other_writer(head, model)
        if model is None or writer_path is None or not writer_path.is_file():
            await self._open_with(None, conversation_id, word)
            if writer_path is not None:
                core.say(f"{clean_line(head.model, _TITLE_CHARS)} wrote it and is no longer here.")
            return
        choice = await weigh(store, conversation_id, head, writer_path, model, core.settings)
        screen = make_screen("question", choice, core.keymap, kind="OpenConversationScreen")
        open_chosen = partial(self._open_as_chosen, conversation_id, word, choice)
        core.screen.app.push_screen(screen, open_chosen)

    def _open_as_chosen(
        self, conversation_id: str, word: str, choice: WriterChoice, answer: str | None
    ) -> None:
        if answer is not None:
            path = choice.writer_path if answer == "writer" else None
            self._core.screen.call_later(self._open_with, path, conversation_id, word)

    async def _open_with(self, model_path: Path | None, conversation_id: str, word: str) -> None:
        """Open a saved conversation with a model; None for the open model."""
        core = self._core
        if core.refuses_while_busy():
            return
        opened = self._open_saved(conversation_id, model_path, word)
        if opened is not None:
            if model_path is not None:
                self._begin_loading()
            await self.clear_transcript()
            await self._show_saved(opened)
            core.focus_prompt()
            await self._show_message_with(word)

    async def _show_message_with(self, word: str) -> None:
        """Find a word in the first message that has it, and show the branch that it is in."""
        chat_session = self._core.chat_session
        place = find_message(chat_session.conversation.messages, word) if word else None
        if place is None:
            return
        with self._core.refusals_said(is_error=False):
            if place.steps:
                chat_session.change_conversation(partial(show_place, place=place))
                await self.show_again()
            await self._find(word, place.index)

    def focus_message(self, index: int) -> None:
        """Focus the message at an index, with its beginning at the top of the screen."""
        transcript = self._core.transcript
        view = transcript.view_near(self._core.chat_session.conversation.messages[index])
        if view is not None:
            transcript.release_anchor()
            view.focus(scroll_visible=False)
            scroll = partial(view.scroll_visible, animate=False, top=True)
            self._core.screen.call_after_refresh(scroll)
            self._core.edge.hint_message_keys(view)

    def _open_saved(
        self, conversation_id: str, model_path: Path | None = None, word: str = ""
    ) -> LoadedConversation | None:
        """Continue a saved conversation in the session; None if it cannot be opened.

        Args:
            word: word whose first message is in the branch to show; "" for the branch shown last.
        """
        store = self._core.storage.store
        assert store is not None
        try:
            opened = store.open(conversation_id)
        except StoreError as error:
            line = f"conversation {conversation_id} cannot be opened: {error}"
            self._core.say(line, is_error=True)
            return None
        if word:
            with self._core.refusals_said(is_error=False):
                show_branch_with(opened.saved, word)
        self._core.chat_session.open_saved(opened, model_path)
        return opened

    async def _show_saved(self, opened: LoadedConversation) -> None:
        core = self._core
        await self._fill_transcript()
        self._show_options()
        line = f"Continuing {self._title_of(opened.saved)}"
        if options := describe_options(
            core.chat_session.conversation.options, core.engine_thread.settings
        ):
            line += f" with {options}"
        self._opening_line = line, core.say(f"{line} · /new")
        if opened.notice:
            core.say(opened.notice, is_error=True)

        conversation = opened.saved.conversation
        replies = core.transcript.replies()
        if opened.saved.text_to_resend:
            self._bring_back_messages(opened.saved)
        elif conversation.awaits_reply and not conversation.messages[-1].results:
            core.say(NO_REPLY)
        elif core.chat_session.can_continue and replies:
            replies[-1].offer(CONTINUE_OFFER)

    def _bring_back_messages(self, saved: SavedConversation) -> None:
        """Put an unanswered message back into the prompt, or into the history if it has a draft."""
        prompt = self._core.prompt
        text = saved.text_to_resend
        where = "it is back in the prompt"
        if not prompt.text:
            prompt.give_back(text)
        elif prompt.draft.text.strip() != text.strip():
            prompt.past.add(prompt.past.find(text) or draft_of(text))
            where = f"{self._core.keymap.first_key('prompt.older') or 'Up'} recalls it"
        # It stays in the log until another message is sent.
        self._core.chat_session.recovered_texts = []
        what = (
            "A queued message was not sent" if saved.queued_texts else "Your edit was not answered"
        )
        self._core.say(f"{what} before Jalopy closed; {where}.")

    async def show_again(self) -> None:
        """Show all messages of the conversation again, without the lines between them."""
        await self.clear_transcript()
        await self._fill_transcript()

    async def _fill_transcript(self) -> None:
        conversation = self._core.chat_session.conversation
        self._has_announced_limit = False
        await self._core.transcript.fill(conversation.messages)
        if 0 < conversation.n_dropped < len(conversation.messages):
            first = conversation.messages[conversation.n_dropped]
            self._core.transcript.divide(first, mark_of_context(conversation))

    async def clear_transcript(self) -> None:
        """Remove all messages but those that wait for their turn."""
        self._editing.cancel()
        self._core.edge.hint()
        self._turn_views.forget()
        self._opening_line = None
        self._offered_id = ""
        await self._core.transcript.clear()

    def show_taken_up(self, event: ConversationResumed) -> None:
        """Say how much of an opened conversation is restored, and how much must be read again."""
        if event.trouble:
            self._core.say(event.trouble, is_error=True)
        parts = resumed_phrases(event)
        style = ""
        if event.restored_tokens and figures.saves_much(event.restored_s, event.read_s):
            style = "news"
        if not parts:
            return
        if self._opening_line is None:
            self._core.say(" · ".join(parts), style=style)
        else:
            line, note = self._opening_line
            self._opening_line = None
            note.say(" · ".join((line, *parts, "/new")), style)

    # ---- a context that fills

    def announce_full_context(self) -> None:
        """Say once, before the context is full, what will happen and what the user can do."""
        status = self._core.engine_thread.status
        model = self._core.chat_session.model
        is_nearly_full = ANNOUNCED_SHARE * status.n_ctx <= status.context_used < status.n_ctx
        if is_nearly_full and not self._has_announced_limit:
            self._has_announced_limit = True
            may_grow = model is not None and model.context_may_grow
            line = figures.context_nearly_full(
                status.context_used, status.n_ctx, may_grow, self._core.settings.compact
            )
            self._core.say(line)

    def show_dropped(self, event: TurnsDropped) -> None:
        """Say which turns the model no longer sees, and mark where they end."""
        first = self._core.chat_session.first_in_context
        if first is not None:
            mark = mark_of_context(self._core.chat_session.conversation)
            self._core.transcript.divide(first, mark)
        self._core.say(
            figures.dropped_turns(event.n_turns, event.n_tokens, event.read_tokens, event.read_s)
        )
        self._has_announced_limit = False

    # ---- commands

    async def action_new(self) -> None:
        """Start a new conversation."""
        key = self._core.keymap.key_or_command("app.conversations")
        advice = f"Earlier ones: {key}"
        if self._core.storage.store is None:
            advice = "The old one is gone, because conversations are not saved."
        elif self._core.chat_session.journal.is_private:
            advice = "The private one is gone."
        await self._start_next(f"New conversation. {advice}")

    async def action_private(self) -> None:
        """Start a conversation of which nothing is saved."""
        await self._start_next(commands.PRIVATE_LINE, is_private=True)

    async def action_persona(self, argument: str = "") -> None:
        """List personas, start a conversation with one, or save the present choices as one."""
        core = self._core
        if argument and core.refuses_while_busy():
            return
        with core.refusals_said():
            chosen = commands.choose_among_personas(core.chat_session, argument)
            if chosen.persona is None:
                core.say(chosen.line)
                return
            system = chosen.persona.system
            parts = filter(None, (chosen.line, clean_line(system, 200)))
            begins = "" if core.chat_session.conversation.is_empty else "New conversation with "
            line = f"{begins}persona {argument}: {' · '.join(parts)}"
            await self._start(system or None, line, chosen.sampling, argument)

    def action_system(self, text: str = "") -> None:
        """Show the system prompt, replace it from the next message on, or remember it for the
        model."""
        core = self._core
        with core.refusals_said():
            reply = reply_about_system(core.engine_thread, core.chat_session, text)
            if reply:
                core.say(reply)
            else:
                self._replace_system(text)

    def _replace_system(self, text: str) -> None:
        conversation = self._core.chat_session.conversation
        system = commands.new_system(text)
        change = commands.replace_system(system)
        if not self._core.chat_session.change_conversation(change):
            self._core.say(self._core.busy_line())
            return
        self._show_options()
        when = "" if conversation.is_empty else " from the next message on"
        self._core.say(f"system prompt{when}: {system or 'none'}")

    async def _start_next(self, line: str, *, is_private: bool = False) -> None:
        """Start a conversation as the present one began, or as is remembered for the model."""
        if not self._core.chat_session.start_next(is_private=is_private):
            self._core.say(self._core.busy_line())
            return
        await self.clear_transcript()
        self._show_options()
        self._core.say(line)
        self.say_start()

    def say_start(self) -> None:
        """Say which system prompt begins the conversation, if it is remembered for the model."""
        if line := starting_line(self._core.engine_thread, self._core.chat_session):
            self._core.say(line)

    async def _start(
        self,
        system: str | None,
        line: str,
        sampling: Mapping[str, float] | None = None,
        persona: str = "",
    ) -> None:
        if not self._core.chat_session.start_new(system, sampling, persona):
            self._core.say(self._core.busy_line())
            return
        await self.clear_transcript()
        self._show_options()
        self._core.say(line)

    def action_rename(self, title: str) -> None:
        """Give the conversation a title."""
        self._core.say(commands.rename(self._core.chat_session, title))

    def action_save(self, argument: str = "") -> None:
        """Save the conversation as Markdown; with the thinking if "+thinking" is at the end."""
        chat_session = self._core.chat_session
        with self._core.refusals_said(is_error=not chat_session.conversation.is_empty):
            self._core.say(commands.export(chat_session, argument))

    async def action_fork(self) -> None:
        """Continue with a copy of the conversation."""
        replies = self._core.transcript.replies()
        if replies:
            await self.fork_here(replies[-1])
        else:
            self._core.say("There is no reply to continue from yet")

    async def action_delete(self, argument: str = "") -> None:
        """Ask whether to delete the conversation; delete it if the argument is "yes"."""
        core = self._core
        if core.storage.store is None or not core.chat_session.journal.id:
            core.say("This conversation is not saved, so there is nothing to delete")
        elif argument.lower() == "yes":
            trouble = await self.delete_live()
            if trouble:
                core.say(trouble, is_error=True)
        else:
            title = clean_line(core.chat_session.journal.title, _TITLE_CHARS)
            core.say(f'Delete "{title}" and its cached reading? /delete yes deletes it')

    def action_context(self) -> None:
        """Show what fills the context."""
        with self._core.refusals_said():
            self._core.say(commands.context_text(self._core.engine_thread, self._core.chat_session))

    def action_pin(self) -> None:
        """Pin the conversation to the top of the list, or unpin it."""
        with self._core.refusals_said(is_error=False):
            self._core.say(commands.pin(self._core.chat_session))

    def action_tag(self, argument: str = "") -> None:
        """Show the tags of the conversation, or add or remove one."""
        with self._core.refusals_said(is_error=False):
            self._core.say(commands.tag(self._core.chat_session, argument))

    async def fork_here(self, view: MessageView) -> None:
        """Continue with a copy of the conversation that ends with the turn of a message."""
        core = self._core
        index = core.index_of(view)
        if index is None:
            core.say(NOT_IN_CONVERSATION)
            return
        if core.refuses_while_busy():
            return
        if core.chat_session.journal.is_private:
            core.say("Not copied: a private conversation is not saved")
            return
        if core.storage.store is None:
            core.say(
                "Not copied: conversations are not saved, so the messages after this would be lost"
            )
            return
        title = core.chat_session.journal.title
        n_messages = min(len(core.chat_session.conversation.messages), index - index % 2 + 2)
        core.chat_session.fork(n_messages)
        await self.show_again()
        core.focus_prompt()
        core.say(
            f"This is a copy of the first {n_messages} messages. "
            f"The original conversation is saved: {title}"
        )

    async def delete_live(self) -> str:
        """Delete the open conversation, and start a new one with its system prompt.

        Returns:
            The reason why it cannot be deleted; "" if it is.
        """
        store = self._core.storage.store
        assert store is not None
        conversation_id = self._core.chat_session.journal.id
        if not self._core.chat_session.start_next(abandons_present=True):
            return self._core.busy_line("in the chat ")
        await self.clear_transcript()
        try:
            if conversation_id:
                delete = partial(store.delete, conversation_id)
                await wrap_future(in_background(delete, "delete"))
        except StoreError as error:
            return str(error)
        self._core.say("The conversation is deleted. This is a new one.")
        self.say_start()
        return ""
