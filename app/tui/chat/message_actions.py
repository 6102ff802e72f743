"""Actions on messages: edit and ask again, or let a reply go on from there; continue, answer again,
copy."""

from __future__ import annotations

import os
from asyncio import wrap_future
from collections.abc import Callable, Sequence
from functools import partial, partialmethod

from textual import on
from textual.events import DescendantFocus
from textual.timer import Timer

from app.conversations.conversation import Role
from app.program import clipboard
from app.program.background import in_background
from app.program.refusals import Refusal
from app.session import commands
from app.session.events import PromptWeighed
from app.session.generation import THINK_USAGE
from app.text import figures
from app.tui.chat.chat_view import NOT_PART, ChatView
from app.tui.chat.draft import Draft
from app.tui.chat.messages import MessageBlurred
from app.tui.markdown.code_blocks import code_blocks, wanted_block, wanted_text
from app.tui.screens import make_screen
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import (
    MessageKeyPressed,
    MessageView,
    ReplyView,
    ToolView,
    UserView,
)

WEIGHING_PAUSE_S = 0.5
PLACES = "/place shows where it is from"


class MessageActions(ChatView):
    """Goes from message to message, and acts on them."""

    draft_aside = Draft()
    """What was in the prompt before a message was edited there."""
    _edited: MessageView | None = None
    _weighing: Timer | None = None
    _sent_edit: tuple[int, str] | None = None
    """Of an edited message that was sent: its place, and its new text, until its reply begins."""

    # ---- which message has the focus

    def _step(self, step: int) -> None:
        """Go down by ``step`` messages, up if negative; below the newest message is the prompt."""
        views = self.transcript.messages()
        focused = self.focused
        if isinstance(focused, MessageView) and focused in views:
            at = views.index(focused)
        else:
            at = len(views)
        if at + step >= len(views):
            self.focus_prompt()
            return
        if at + step < 0 and self.transcript.show_earlier():
            n_shown = len(views)
            views = self.transcript.messages()
            at += len(views) - n_shown
        if at + step >= 0:
            self.transcript.release_anchor()
            views[at + step].focus()
            self.hint_keys_of(views[at + step])

    action_focus_older = partialmethod(_step, -1)
    action_focus_newer = partialmethod(_step, 1)

    @on(MessageBlurred)
    def leave_message(self, message: MessageBlurred) -> None:
        """Go to the prompt, with what was typed to do so."""
        self.focus_prompt()
        if message.event is not None:
            self.prompt.post_message(message.event)

    def focus_stopped(self, view: ReplyView) -> None:
        """Go to a reply that Esc stopped, where its keys act, unless the user is writing the next
        message."""
        if self.focused is self.prompt and not self.prompt.text:
            view.hesitates = True
            view.focus(scroll_visible=False)  # what is being read stays in sight
            self.hint_keys_of(view)

    @on(MessageKeyPressed)
    async def act_on_message(self, pressed: MessageKeyPressed) -> None:
        """Do what a key on a message asks for: its action's name is that of a method here."""
        outcome = getattr(self, pressed.name)(pressed.view)
        if outcome is not None:
            await outcome

    # ---- an earlier message is in the prompt, to be changed

    @property
    def is_editing(self) -> bool:
        """Whether what is in the prompt will take the place of an earlier message."""
        return self._edited is not None

    @property
    def is_editing_reply(self) -> bool:
        """Whether that is a reply: then every character counts."""
        return isinstance(self._edited, ReplyView)

    def action_edit(self, argument: str = "") -> None:
        """Edit a message: the last one, the one of this number, or the last reply."""
        with self.telling_refusals(is_error=False):
            self._begin_edit(commands.message_to_edit(self.chat_session.conversation, argument))

    def edit_here(self, view: MessageView, is_question: bool = False) -> None:
        """Edit a message, or the question that it answers."""
        index = self.index_of(view)
        if index is None:
            self.note(NOT_PART)
        else:
            self._begin_edit(index - index % 2 if is_question else index)

    def _begin_edit(self, index: int) -> None:
        """Put the message at this place of the conversation into the prompt."""
        if self.refuses_while_busy():
            return
        conversation = self.chat_session.conversation
        try:
            commands.check_editable(conversation, index)
        except Refusal as refusal:
            key = self.keymap.first_key("message.fork_here")
            if str(refusal) == commands.GONE:
                more = f": {key} on it goes on from there with a copy"
            else:
                more = ""
            self.note(f"{refusal}{more}")
            return
        message = conversation.messages[index]
        self.cancel_edit()
        view = self.transcript.view_of(message)
        if view is None:
            return
        self._edited = view
        self.draft_aside = self.prompt.draft
        self.prompt.takes_commands = not self.is_editing_reply
        for later in self._views_from(view):
            later.set_replaced(True)
        self._show_edited_text(message.editable_text)
        self.prompt.focus()
        self.transcript.release_anchor()
        view.scroll_visible(animate=False, top=True)
        first_key = self.keymap.first_key
        if self.is_editing_reply:
            sends = "goes on from here"
        else:
            sends = "asks again from here"
        self.set_usual_hint(
            f"{first_key('prompt.send')} {sends} · {first_key('chat.stop')} keeps everything"
        )
        self._show_edit_line(commands.edit_title(conversation, index))
        self._weigh()

    def cancel_edit(self) -> bool:
        """Leave the conversation as it is and bring back what stood in the prompt; False when
        nothing is edited."""
        if self._edited is None:
            return False
        for view in self._views_from(self._edited):
            view.set_replaced(False)
        self._end_edit()
        self.prompt.show_draft(self.draft_aside)
        self.transcript.anchor()
        return True

    def _end_edit(self) -> None:
        """Nothing is edited any more; what is in the prompt stays."""
        self._edited = None
        self.prompt.takes_commands = True
        self.set_usual_hint()
        self._show_edit_line("")

    def send_edit(self, text: str, folded: str = "") -> bool:
        """Ask, or let the reply go on, in place of what is edited and all after it, seen until a
        reply begins."""
        assert self._edited is not None
        index = self.index_of(self._edited)
        is_reply = self.is_editing_reply
        if index is None or not (
            self.chat_session.submit_edited_reply(text, index // 2)
            if is_reply
            else self.chat_session.submit_edit(text, index // 2, folded)
        ):
            self.refuses_while_busy()
            return False
        views = self._views_from(self._edited)
        self._end_edit()
        self._sent_edit = index, text
        if not is_reply:
            self.show_asked(self.transcript.add_user(text, folded))
        self.show_replaced(views)
        if not self.prompt.text:
            self.prompt.show_draft(self.draft_aside)
        if is_reply:
            self.focus_prompt()
        return True

    def note_replied(self) -> None:
        """The edited message has its reply."""
        self._sent_edit = None

    def edit_again(self) -> bool:
        """Put an edited message that was sent for nothing into the prompt as before; False where it
        cannot."""
        sent = self._sent_edit
        self._sent_edit = None
        is_writing = bool(self.prompt.text) and self.prompt.draft != self.draft_aside
        if sent is None or is_writing or self.chat_session.queued_texts:
            return False
        index, text = sent
        self._begin_edit(index)
        if self.is_editing:
            self._show_edited_text(text)
        return self.is_editing

    def _show_edited_text(self, text: str) -> None:
        self.prompt.show_draft(
            (None if self.is_editing_reply else self.prompt.past.find(text)) or Draft(text)
        )

    def _views_from(self, view: MessageView) -> list[MessageView]:
        views = self.transcript.messages()
        if view in views:
            return views[views.index(view) :]
        return []

    def index_of(self, view: MessageView | None) -> int | None:
        """Return a message's place in the conversation; None where it is no part of it any more."""
        if view is not None:
            wanted = view.message
        else:
            wanted = None
        messages = enumerate(self.chat_session.conversation.messages)
        return next((index for index, message in messages if message is wanted), None)

    @property
    def _edited_text(self) -> str:
        text = self.prompt.draft.text
        if self.is_editing_reply:
            return text
        return text.strip()

    def weigh_edit_soon(self) -> None:
        """The text in the prompt has changed: find out what it costs once the user pauses."""
        if self._edited is not None:
            if self._weighing is not None:
                self._weighing.stop()
            self._weighing = call_once(self, WEIGHING_PAUSE_S, self._weigh)

    def _weigh(self) -> None:
        index = self.index_of(self._edited)
        if index is not None and self._edited_text.strip():
            self.chat_session.weigh_edit(self._edited_text, index // 2, self.is_editing_reply)

    def show_weight(self, weighed: PromptWeighed) -> None:
        """Say what sending it costs."""
        index = self.index_of(self._edited)
        if index is None or weighed.text != self._edited_text:
            return
        line = commands.edit_title(self.chat_session.conversation, index)
        if weighed.dropped_tokens:
            if self.is_editing_reply:
                what = "what follows"
            else:
                what = "its answer"
            line += f": {what} ({figures.counted(weighed.dropped_tokens, 'token')}) is replaced"
        if weighed.dropped_tokens:
            line += ";"
        else:
            line += ":"
        if weighed.read_s is not None:
            line += f" starts in about {figures.whole_seconds(weighed.read_s)}"
        else:
            line += f" {figures.counted(weighed.read_tokens, 'token')} to read"
        self._show_edit_line(line)

    def _show_edit_line(self, text: str) -> None:
        self.edit_line.display = bool(text)
        self.edit_line.update(text)

    # ---- what a message hides

    def action_unfold(self) -> None:
        """Show or fold large pastes."""
        self.transcript.toggle_folds()

    def toggle_thinking(self, view: MessageView) -> None:
        """Show or fold what a message hides: its thinking, or what tools said."""
        if isinstance(view, ToolView):
            view.unfold(not view.is_unfolded)
        elif not (isinstance(view, ReplyView) and view.toggle_thinking()):
            self.note("there is no thinking in this message")

    def toggle_last_thinking(self) -> None:
        """Show or fold what the model thought before the newest reply."""
        views = self.transcript.replies()
        if not views or not views[-1].toggle_thinking():
            self.note(f"there is no thinking in the last reply ({THINK_USAGE})")

    # ---- going on and answering again

    def continue_here(self, view: MessageView) -> None:
        """Go on with the last reply."""
        if view.message is self.chat_session.last_message:
            self.action_continue_reply()
        else:
            self.note("only the last reply can go on")

    def action_continue_reply(self) -> None:
        """Go on with the last reply where it was stopped."""
        self._reply_again(
            self.chat_session.continue_reply, "there is no unfinished reply at the end"
        )

    def regenerate_here(self, view: MessageView) -> None:
        """Answer the last message again; of an earlier one, edit the question."""
        users = [one for one in self.transcript.messages() if isinstance(one, UserView)]
        is_unanswered = view in users[-1:] and self.chat_session.conversation.awaits_reply
        if is_unanswered or view.message is self.chat_session.last_message:
            self.action_regenerate()
        else:
            self.edit_here(view, is_question=True)

    def action_regenerate(self, wanted: str = "") -> None:
        """Answer the last message again, as many times at once as is wanted."""
        with self.telling_refusals(is_error=False):
            begin = partial(self.chat_session.regenerate, commands.n_answers(wanted))
            self._reply_again(begin, "there is nothing to answer again")

    def _reply_again(self, begin: Callable[[], bool], why_not: str) -> None:
        if self.refuses_while_busy():
            return
        last = self.chat_session.last_message
        awaits_reply = self.chat_session.conversation.awaits_reply
        if last is not None:
            view = self.transcript.view_of(last)
        else:
            view = None
        if not begin():
            self.note(why_not if self.chat_session.model else "no model is loaded")
            return
        self.cancel_edit()
        if not awaits_reply:
            self.show_replaced([view] if view is not None else [])
        elif isinstance(view, UserView):
            self.asked = view
            view.mark("")
            view.message = self.chat_session.last_message
        else:
            self.asked = None
        self.focus_prompt()

    # ---- documents

    @on(DescendantFocus)
    def look_for_places(self, event: DescendantFocus) -> None:
        """Name the places in documents of the reply that the user goes to."""
        if isinstance(event.widget, ReplyView):
            self.find_places_soon(event.widget)

    def find_places_soon(self, view: ReplyView) -> None:
        """Begin to find out what in documents a reply speaks of."""
        self.run_worker(self._find_places(view), group="places")

    async def _find_places(self, view: MessageView | None) -> Sequence[object]:
        """Find out what in documents a reply speaks of, and name it below the reply; return the
        places."""
        index = self.index_of(view)
        if not isinstance(view, ReplyView):
            return ()
        if view.places is None and index is not None:
            messages = self.chat_session.conversation.messages[:index]
            asked = [one.text for one in messages if one.role is Role.USER and one.folded]
            if asked:
                from app.documents.citations import find_citations  # only documents need it

                find = partial(find_citations, view.text, asked)
                view.show_places(await wrap_future(in_background(find, "places")))
            else:
                view.show_places(())
            if (
                view.places
                and view.message is self.chat_session.last_message
                and not self.chat_session.can_continue
            ):
                view.offer(PLACES)
            if view.has_focus:
                self.hint_keys_of(view)
        return view.places or ()

    async def show_place(self, view: MessageView | None) -> bool:
        """Show the place in a document that a reply is from; without one, False, and back to the
        prompt."""
        places = await self._find_places(view)
        if places:
            self.app.push_screen(make_screen("place", places, self.keymap))
        else:
            self.focus_prompt()
        return bool(places)

    async def action_place(self) -> None:
        """Show where in a document the newest reply is from."""
        if not await self.show_place(next(reversed(self.transcript.replies()), None)):
            self.note("the last reply names no place in a document of this conversation")

    # ---- copying

    async def action_copy(self, what: str = "") -> None:
        """Copy the last reply, its n-th code block, or its thinking; with "file" into a file."""
        with self.telling_refusals(is_error=False):
            found = wanted_text(self.chat_session.conversation.last_reply, what)
            await self.copy_out(found.text, found.to_file, found.name)

    async def copy_message(self, view: MessageView) -> None:
        """Copy what a message says; of a reply without an answer yet, its thinking."""
        if isinstance(view, ReplyView):
            thought = view.thinking.text
        else:
            thought = ""
        await self.copy_out(view.text or thought)

    async def copy_code(self, view: MessageView) -> None:
        """Copy the code block of a reply that follows the one copied last."""
        if isinstance(view, ReplyView):
            n_blocks = len(code_blocks(view.text))
        else:
            n_blocks = 0
        if not isinstance(view, ReplyView) or not n_blocks:
            self.note("there is no code block in this message")
            return
        view.next_block = view.next_block % n_blocks + 1
        found = wanted_block(view.text, str(view.next_block))
        await self.copy_out(found.text, found.to_file, found.name)

    async def copy_out(self, text: str, to_file: bool = False, what: str = "") -> None:
        """Copy a text and say by which route."""
        if not text:
            self.note("there is no text to copy")
            return
        route = await clipboard.copy(text, self.app.copy_to_clipboard, os.environ, to_file)
        self.note(f"{what}: {route}" if what else route)
