"""Actions on messages: edit and ask again, or let a reply go on from there; continue, answer again, copy."""

from __future__ import annotations

import os
from asyncio import wrap_future
from collections.abc import Awaitable, Callable
from functools import partial

from textual.timer import Timer
from textual.widgets import Static

from app.chat import commands
from app.chat.events import PromptWeighed
from app.chat.generation import THINK_USAGE as USAGE
from app.conversations.conversation import Role
from app.program import clipboard
from app.program.background import in_background
from app.program.refusals import Refusal
from app.text import figures
from app.tui.draft import Draft
from app.tui.markdown.code_blocks import code_blocks, wanted_block, wanted_text
from app.tui.screens.chat_parts import NOT_PART, ChatParts
from app.tui.screens.surroundings import make_screen
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import MessageKeyPressed, MessageView, ReplyView, ToolView, UserView

WEIGHING_PAUSE_S = 0.5
PLACES = "/place shows where it is from"


class MessageEditing:
    """An earlier message is in the prompt, to be changed."""

    def __init__(self, parts: ChatParts) -> None:
        self._parts = parts
        self._line = parts.screen.query_one("#edit-line", Static)
        self._edited: MessageView | None = None
        self._draft = Draft("")
        self._weighing: Timer | None = None
        self._sent: tuple[int, str] | None = None
        """Of an edited message that was sent: its place, and its new text, until its reply begins."""
        self._line.display = False

    @property
    def is_editing(self) -> bool:
        """Whether what is in the prompt will take the place of an earlier message."""
        return self._edited is not None

    @property
    def is_editing_reply(self) -> bool:
        """Whether that is a reply: then every character counts."""
        return isinstance(self._edited, ReplyView)

    def edit(self, argument: str = "") -> None:
        """Edit a message: the last one, the one of this number, or the last reply."""
        with self._parts.notes.telling_refusals(is_error=False):
            self.begin(commands.message_to_edit(self._parts.turns.conversation, argument))

    def begin(self, index: int) -> None:
        """Put the message at this place of the conversation into the prompt."""
        if self._parts.notes.refuses_while_busy():
            return
        conversation = self._parts.turns.conversation
        try:
            commands.check_editable(conversation, index)
        except Refusal as refusal:
            key = self._parts.keymap.first_key("message.fork_here")
            more = f": {key} on it goes on from there with a copy" if str(refusal) == commands.GONE else ""
            self._parts.notes.note(f"{refusal}{more}")
            return
        message = conversation.messages[index]
        self.cancel()
        view = self._parts.transcript.view_of(message)
        if view is None:
            return
        self._edited, self._draft = view, self._parts.prompt.draft
        self._parts.drafting.set_paused(True)
        self._parts.prompt.takes_commands = not self.is_editing_reply
        for later in self._views_from(view):
            later.set_replaced(True)
        self._show_text(message.editable_text)
        self._parts.prompt.focus()
        self._parts.transcript.release_anchor()
        view.scroll_visible(animate=False, top=True)
        first_key = self._parts.keymap.first_key
        sends = "goes on from here" if self.is_editing_reply else "asks again from here"
        keys = f"{first_key('prompt.send')} {sends} · {first_key('chat.stop')} keeps everything"
        self._parts.notes.set_usual(keys)
        self._show_edit_line(commands.edit_title(self._parts.turns.conversation, index))
        self._weigh()

    def cancel(self) -> bool:
        """Leave the conversation as it is and bring back what stood in the prompt; False when nothing is edited."""
        if self._edited is None:
            return False
        for view in self._views_from(self._edited):
            view.set_replaced(False)
        self.end()
        self._parts.prompt.show_draft(self._draft)
        self._parts.transcript.anchor()
        return True

    def end(self) -> None:
        """Nothing is edited any more; what is in the prompt stays."""
        self._edited = None
        self._parts.drafting.set_paused(False)
        self._parts.prompt.takes_commands = True
        self._parts.notes.set_usual()
        self._show_edit_line("")

    def send(self, text: str, folded: str = "") -> bool:
        """Ask, or let the reply go on, in place of what is edited and all after it, seen until a reply begins."""
        assert self._edited is not None
        index, is_reply = self.index_of(self._edited), self.is_editing_reply
        if index is None or not (
            self._parts.turns.submit_edited_reply(text, index // 2)
            if is_reply
            else self._parts.turns.submit_edit(text, index // 2, folded)
        ):
            self._parts.notes.refuses_while_busy()
            return False
        views = self._views_from(self._edited)
        self.end()
        self._sent = index, text
        if not is_reply:
            self._parts.views.ask(self._parts.transcript.add_user(text, folded))
        self._parts.views.replace(views)
        if not self._parts.prompt.text:
            self._parts.prompt.show_draft(self._draft)
        if is_reply:
            self._parts.focus.to_prompt()
        return True

    def keep_unsent(self) -> str:
        """Keep what was written and not asked yet for the next start; returns a line that says so, or ""."""
        return self._parts.drafting.keep_unsent(self._draft if self.is_editing else Draft())

    def note_replied(self) -> None:
        """The edited message has its reply."""
        self._sent = None

    def edit_again(self) -> bool:
        """Put an edited message that was sent for nothing into the prompt as before; False where it cannot."""
        sent, self._sent = self._sent, None
        is_writing = bool(self._parts.prompt.text) and self._parts.prompt.draft != self._draft
        if sent is None or is_writing or self._parts.turns.queued_texts:
            return False
        index, text = sent
        self.begin(index)
        if self.is_editing:
            self._show_text(text)
        return self.is_editing

    def _show_text(self, text: str) -> None:
        self._parts.prompt.show_draft(
            (None if self.is_editing_reply else self._parts.prompt.past.find(text)) or Draft(text)
        )

    def _views_from(self, view: MessageView) -> list[MessageView]:
        views = self._parts.transcript.messages()
        return views[views.index(view) :] if view in views else []

    def index_of(self, view: MessageView | None) -> int | None:
        """Return a message's place in the conversation; None where it is no part of it any more."""
        messages = self._parts.turns.conversation.messages
        wanted = view.message if view is not None else None
        return next((index for index, message in enumerate(messages) if message is wanted), None)

    @property
    def _edited_text(self) -> str:
        text = self._parts.prompt.draft.text
        return text if self.is_editing_reply else text.strip()

    def weigh_soon(self) -> None:
        """The text in the prompt has changed: find out what it costs once the user pauses."""
        if self._edited is not None:
            if self._weighing is not None:
                self._weighing.stop()
            self._weighing = call_once(self._parts.screen, WEIGHING_PAUSE_S, self._weigh)

    def _weigh(self) -> None:
        index = self.index_of(self._edited)
        if index is not None and self._edited_text.strip():
            self._parts.turns.weigh_edit(self._edited_text, index // 2, self.is_editing_reply)

    def show_weight(self, weighed: PromptWeighed) -> None:
        """Say what sending it costs."""
        index = self.index_of(self._edited)
        if index is None or weighed.text != self._edited_text:
            return
        line = commands.edit_title(self._parts.turns.conversation, index)
        if weighed.dropped_tokens:
            what = "what follows" if self.is_editing_reply else "its answer"
            line += f": {what} ({figures.counted(weighed.dropped_tokens, 'token')}) is replaced"
        line += ";" if weighed.dropped_tokens else ":"
        if weighed.read_s is not None:
            line += f" starts in about {figures.whole_seconds(weighed.read_s)}"
        else:
            line += f" {figures.counted(weighed.read_tokens, 'token')} to read"
        self._show_edit_line(line)

    def _show_edit_line(self, text: str) -> None:
        self._line.display = bool(text)
        self._line.update(text)


class MessageActions:
    """Acts on messages; ``fork`` goes on with a copy of the conversation that ends with one."""

    def __init__(
        self, parts: ChatParts, editing: MessageEditing, fork: Callable[[MessageView], Awaitable[None]]
    ) -> None:
        self._parts = parts
        self._editing = editing
        self._fork = fork

    async def act_on_message(self, pressed: MessageKeyPressed) -> None:
        """Do what a key on a message asks for: its action's name is that of a method here."""
        outcome = getattr(self, pressed.name)(pressed.view)
        if outcome is not None:
            await outcome

    async def fork_here(self, view: MessageView) -> None:
        """Go on with a copy of the conversation that ends with the turn of this message."""
        await self._fork(view)

    def toggle_thinking(self, view: MessageView) -> None:
        """Show or fold what a message hides: its thinking, or what tools said."""
        if isinstance(view, ToolView):
            view.unfold(not view.is_unfolded)
        elif not (isinstance(view, ReplyView) and view.toggle_thinking()):
            self._parts.notes.note("there is no thinking in this message")

    def toggle_last_thinking(self) -> None:
        """Show or fold what the model thought before the newest reply."""
        views = self._parts.transcript.replies()
        if not views or not views[-1].toggle_thinking():
            self._parts.notes.note(f"there is no thinking in the last reply ({USAGE})")

    def continue_here(self, view: MessageView) -> None:
        """Go on with the last reply."""
        if view.message is self._parts.turns.last_message:
            self.continue_reply()
        else:
            self._parts.notes.note("only the last reply can go on")

    def regenerate_here(self, view: MessageView) -> None:
        """Answer the last message again; of an earlier one, edit the question."""
        users = [one for one in self._parts.transcript.messages() if isinstance(one, UserView)]
        is_unanswered = view in users[-1:] and self._parts.turns.conversation.awaits_reply
        if is_unanswered or view.message is self._parts.turns.last_message:
            self.regenerate()
        else:
            self.edit_here(view, is_question=True)

    def edit_here(self, view: MessageView, is_question: bool = False) -> None:
        """Edit a message, or the question that it answers."""
        index = self._editing.index_of(view)
        if index is None:
            self._parts.notes.note(NOT_PART)
        else:
            self._editing.begin(index - index % 2 if is_question else index)

    # ---- going on and answering again

    def continue_reply(self) -> None:
        """Go on with the last reply where it was stopped."""
        self._reply_again(self._parts.turns.continue_reply, "there is no unfinished reply at the end")

    def regenerate(self, wanted: str = "") -> None:
        """Answer the last message again, as many times at once as is wanted."""
        with self._parts.notes.telling_refusals(is_error=False):
            begin = partial(self._parts.turns.regenerate, commands.n_answers(wanted))
            self._reply_again(begin, "there is nothing to answer again")

    def _reply_again(self, begin: Callable[[], bool], why_not: str) -> None:
        if self._parts.notes.refuses_while_busy():
            return
        last, awaits_reply = self._parts.turns.last_message, self._parts.turns.conversation.awaits_reply
        view = self._parts.transcript.view_of(last) if last is not None else None
        if not begin():
            self._parts.notes.note(why_not if self._parts.turns.model else "no model is loaded")
            return
        self._editing.cancel()
        if not awaits_reply:
            self._parts.views.replace([view] if view is not None else [])
        elif isinstance(view, UserView):
            self._parts.views.asked = view
            view.mark("")
            view.message = self._parts.turns.last_message
        else:
            self._parts.views.asked = None
        self._parts.focus.to_prompt()

    # ---- documents

    async def find_places(self, view: MessageView | None) -> None:
        """Find out what in documents a reply speaks of, and name it below the reply."""
        index = self._editing.index_of(view)
        if not isinstance(view, ReplyView) or view.places is not None or index is None:
            return
        messages = self._parts.turns.conversation.messages[:index]
        asked = [one.text for one in messages if one.role is Role.USER and one.folded]
        if asked:
            from app.documents.cited import places_of  # only documents need it

            find = partial(places_of, view.text, asked)
            view.show_places(await wrap_future(in_background(find, "places")))
        else:
            view.show_places(())
        if view.places and view.message is self._parts.turns.last_message and not self._parts.turns.can_continue:
            view.offer(PLACES)
        if view.has_focus:
            self._parts.notes.hint_keys_of(view)

    async def show_place(self, view: MessageView | None) -> None:
        """Show the place in a document that a reply is from; without one, go back to the prompt."""
        await self.find_places(view)
        if isinstance(view, ReplyView) and view.places:
            self._parts.screen.app.push_screen(make_screen("place", view.places, self._parts.keymap))
        else:
            self._parts.focus.to_prompt()

    async def show_last_place(self) -> None:
        """The same of the newest reply."""
        view = next(reversed(self._parts.transcript.replies()), None)
        await self.show_place(view)
        if not (isinstance(view, ReplyView) and view.places):
            self._parts.notes.note("the last reply names no place in a document of this conversation")

    # ---- copying

    async def copy(self, what: str = "") -> None:
        """Copy the last reply, its n-th code block, or its thinking; with "file" into a file."""
        with self._parts.notes.telling_refusals(is_error=False):
            found = wanted_text(self._parts.turns.conversation.last_reply, what)
            await self.copy_out(found.text, found.to_file, found.name)

    async def report(self, wanted: str = "") -> None:
        """Copy a card with machine, model and speeds, or write it into a file."""
        from app.library.report_card import as_text, report_of_chat, write_card  # no first frame waits for it

        with self._parts.notes.telling_refusals():
            card = report_of_chat(self._parts.bridge, self._parts.turns)
            if wanted:
                self._parts.notes.note(write_card(card, wanted))
            else:
                self._parts.notes.note(as_text(card))
                await self.copy_out(as_text(card))

    async def copy_message(self, view: MessageView) -> None:
        """Copy what a message says; of a reply without an answer yet, its thinking."""
        thought = view.thinking.text if isinstance(view, ReplyView) else ""
        await self.copy_out(view.text or thought)

    async def copy_code(self, view: MessageView) -> None:
        """Copy the code block of a reply that follows the one copied last."""
        n_blocks = len(code_blocks(view.text)) if isinstance(view, ReplyView) else 0
        if not isinstance(view, ReplyView) or not n_blocks:
            self._parts.notes.note("there is no code block in this message")
            return
        view.next_block = view.next_block % n_blocks + 1
        found = wanted_block(view.text, str(view.next_block))
        await self.copy_out(found.text, found.to_file, found.name)

    async def copy_out(self, text: str, to_file: bool = False, what: str = "") -> None:
        """Copy a text and say by which route."""
        if not text:
            self._parts.notes.note("there is no text to copy")
            return
        route = await clipboard.copy(text, self._parts.screen.app.copy_to_clipboard, os.environ, to_file)
        self._parts.notes.note(f"{what}: {route}" if what else route)
