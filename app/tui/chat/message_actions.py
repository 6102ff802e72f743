"""Actions on messages: go to one, copy, continue, answer again, and show where a reply is from."""

from __future__ import annotations

import os
from asyncio import wrap_future
from collections.abc import Callable, Sequence
from functools import partial, partialmethod

from app.conversations.conversation import Role
from app.program import clipboard
from app.program.background import in_background
from app.session import commands
from app.session.reply_options import THINK_USAGE
from app.tui.chat.core import ChatCore, TurnViews
from app.tui.chat.editing import MessageEditing
from app.tui.markdown.code_blocks import block_to_copy, code_blocks, text_to_copy
from app.tui.screens import make_screen
from app.tui.textual_hacks import run_last
from app.tui.widgets.call_question import CallQuestion
from app.tui.widgets.message_view import MessageView, ReplyView, ToolView, UserView

PLACES_OFFER = "/place shows its source"


class MessageActions:
    """Keys and commands that act on messages."""

    def __init__(self, core: ChatCore, turn_views: TurnViews, editing: MessageEditing) -> None:
        self._core = core
        self._turn_views = turn_views
        self._editing = editing

    # ---- the focused message

    def _move_focus(self, step: int) -> None:
        """Move the focus by ``step`` messages, up if negative; below the newest is the prompt."""
        transcript = self._core.transcript
        views = [view for view in transcript.messages() if view.display]
        focused = self._core.screen.focused
        if isinstance(focused, CallQuestion):
            focused = next(view for view in views if view in focused.ancestors)
        index = len(views)
        if isinstance(focused, MessageView) and focused in views:
            index = views.index(focused)
        index += step

        if index >= len(views):
            self._core.focus_prompt()
            return
        if index < 0 and transcript.show_earlier():
            n_views = len(views)
            views = [view for view in transcript.messages() if view.display]
            index += len(views) - n_views
        if index >= 0:
            transcript.release_anchor()
            views[index].focus()
            self._core.edge.hint_message_keys(views[index])

    action_focus_older = partialmethod(_move_focus, -1)
    action_focus_newer = partialmethod(_move_focus, 1)

    def focus_stopped(self, view: ReplyView) -> None:
        """Focus a reply that Esc has stopped, unless the user is writing the next message."""
        prompt = self._core.prompt
        if self._core.screen.focused is prompt and not prompt.text:
            view.delays_keys = True
            view.focus(scroll_visible=False)  # the lines that the user reads stay in sight
            self._core.edge.hint_message_keys(view)

    # ---- folded text

    def action_unfold(self) -> None:
        """Unfold or fold large pastes."""
        self._core.transcript.toggle_folds()

    def toggle_thinking(self, view: MessageView) -> None:
        """Unfold or fold the thinking of a reply, or the results of tools."""
        if isinstance(view, ToolView):
            view.unfold(not view.is_unfolded)
        elif not (isinstance(view, ReplyView) and view.toggle_thinking()):
            self._core.say("there is no thinking in this message")

    def toggle_last_thinking(self) -> None:
        """Unfold or fold the thinking of the newest reply."""
        replies = self._core.transcript.replies()
        if not replies or not replies[-1].toggle_thinking():
            self._core.say(f"there is no thinking in the last reply ({THINK_USAGE})")

    # ---- continuing and answering again

    def continue_here(self, view: MessageView) -> None:
        """Continue a reply if it is the last one."""
        if view.message is self._core.chat_session.last_message:
            self.action_continue_reply()
        else:
            self._core.say("Only the last reply can be continued")

    def action_continue_reply(self) -> None:
        """Continue the last reply where it was stopped."""
        begin = self._core.chat_session.continue_reply
        self._reply_again(begin, "there is no unfinished reply at the end")

    def regenerate_here(self, view: MessageView) -> None:
        """Answer the last message again, or edit the question of an earlier one."""
        chat_session = self._core.chat_session
        users = [
            message for message in self._core.transcript.messages() if isinstance(message, UserView)
        ]
        is_unanswered = view in users[-1:] and chat_session.conversation.awaits_reply
        if is_unanswered or view.message is chat_session.last_message:
            self.action_regenerate()
        else:
            self._editing.edit_question_of(view)

    def action_regenerate(self, argument: str = "") -> None:
        """Answer the last message again, with several answers at once if a number is given, or
        with another model if one is named."""
        with self._core.refusals_said(is_error=False):
            n_answers = commands.n_answers(argument)
            if not n_answers:
                run_last(self._core.screen, "model", partial(self._compare, argument))
                return
            commands.check_regenerable(self._core.chat_session.conversation, n_answers)
            begin = partial(self._core.chat_session.regenerate, n_answers)
            self._reply_again(begin, "there is nothing to answer again")

    async def _compare(self, name: str) -> None:
        """Answer the last message with another model as well."""
        core = self._core
        path = await core.find_model(name)
        if path is None:
            return
        with core.refusals_said(is_error=False):
            commands.check_comparable(core.chat_session, path)
            self._reply_again(partial(core.chat_session.compare, path), commands.NOT_COMPARABLE)

    def _reply_again(self, begin: Callable[[], bool], refusal: str) -> None:
        core = self._core
        if core.refuses_while_busy():
            return
        last_message = core.chat_session.last_message
        awaits_reply = core.chat_session.conversation.awaits_reply
        view = core.transcript.view_of(last_message) if last_message is not None else None
        if not begin():
            core.say(refusal if core.chat_session.model else "no model is loaded")
            return

        self._editing.cancel()
        if not awaits_reply:
            self._turn_views.replace([view] if view is not None else [])
        elif isinstance(view, UserView):
            self._turn_views.question = view
            view.show_footer("")
            view.message = core.chat_session.last_message
        else:
            self._turn_views.question = None
        core.focus_prompt()

    # ---- passages of documents that a reply is from

    def find_places_soon(self, view: ReplyView) -> None:
        """Begin to look for the passages of documents that a reply is from."""
        self._core.screen.run_worker(self._find_places(view), group="places")

    async def _find_places(self, view: MessageView | None) -> Sequence[object]:
        """Return the passages that a reply is from, and name them below the reply."""
        if not isinstance(view, ReplyView):
            return ()
        index = self._core.index_of(view)
        if view.places is not None or index is None:
            return view.places or ()

        chat_session = self._core.chat_session
        messages = chat_session.conversation.messages[:index]
        texts = [
            message.text for message in messages if message.role is Role.USER and message.folded
        ]
        if texts:
            from app.documents.citations import find_citations  # only documents need it

            find = partial(find_citations, view.text, texts)
            view.show_places(await wrap_future(in_background(find, "places")))
        else:
            view.show_places(())
        is_last = view.message is chat_session.last_message
        if view.places and is_last and not chat_session.can_continue:
            view.offer(PLACES_OFFER)
        if view.has_focus:
            self._core.edge.hint_message_keys(view)
        return view.places or ()

    async def show_place(self, view: MessageView | None) -> bool:
        """Show the passages that a reply is from; if there are none, go to the prompt."""
        places = await self._find_places(view)
        if places:
            self._core.screen.app.push_screen(make_screen("place", places, self._core.keymap))
        else:
            self._core.focus_prompt()
        return bool(places)

    async def action_place(self) -> None:
        """Show the passages that the newest reply is from."""
        replies = self._core.transcript.replies()
        if not await self.show_place(replies[-1] if replies else None):
            self._core.say("The last reply has no source in a document of this conversation")

    # ---- copying

    async def action_copy(self, argument: str = "") -> None:
        """Copy the last reply, one of its code blocks or its thinking, or write it into a file."""
        with self._core.refusals_said(is_error=False):
            passage = text_to_copy(self._core.chat_session.conversation.last_reply, argument)
            await self.copy_out(passage.text, passage.to_file, passage.name)

    async def copy_message(self, view: MessageView) -> None:
        """Copy a message; the thinking of a reply that has no answer yet."""
        thinking = view.thinking.text if isinstance(view, ReplyView) else ""
        await self.copy_out(view.text or thinking)

    async def copy_code(self, view: MessageView) -> None:
        """Copy the code block of a reply that follows the one copied last."""
        n_blocks = 0
        if isinstance(view, ReplyView):
            n_blocks = len(code_blocks(view.text))
        if not isinstance(view, ReplyView) or not n_blocks:
            self._core.say("there is no code block in this message")
            return
        view.next_block = view.next_block % n_blocks + 1
        block = block_to_copy(view.text, str(view.next_block))
        await self.copy_out(block.text, block.to_file, block.name)

    async def copy_out(self, text: str, to_file: bool = False, name: str = "") -> None:
        """Copy a text, and say how it was copied."""
        if not text:
            self._core.say("there is no text to copy")
            return
        copy_to_terminal = self._core.screen.app.copy_to_clipboard
        route = await clipboard.copy(text, copy_to_terminal, os.environ, to_file)
        self._core.say(f"{name}: {route}" if name else route)
