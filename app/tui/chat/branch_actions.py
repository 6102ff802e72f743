"""Branches of the conversation: show another one from a message, or delete the shown one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.conversations.branches import delete_branch, show_branch
from app.conversations.conversation import Conversation
from app.session import commands
from app.tui.chat.conversation_flow import ConversationFlow
from app.tui.chat.core import (
    ANSWERS_OFFER,
    CONTINUE_OFFER,
    HINT_S,
    NO_REPLY,
    NOT_IN_CONVERSATION,
    ChatCore,
)
from app.tui.chat.editing import MessageEditing
from app.tui.screens import make_screen
from app.tui.widgets.message_view import MessageView


class BranchActions:
    """Keys and commands that act on branches of the conversation."""

    def __init__(
        self, core: ChatCore, editing: MessageEditing, conversations: ConversationFlow
    ) -> None:
        self._core = core
        self._editing = editing
        self._conversations = conversations

    async def action_branch(self, argument: str = "") -> None:
        """Show another branch from the last message that has some, or delete the shown one."""
        conversation = self._core.chat_session.conversation
        with self._core.refusals_said(is_error=False):
            choice = commands.chosen_branch(conversation, argument)
            if choice.is_deleted:
                self._ask_to_delete(choice.index)
            elif await self.show(choice.index, choice.number):
                self._core.say(commands.branch_line(conversation, choice.index))

    async def older_branch(self, view: MessageView) -> None:
        """Show the branch before the one that a message begins."""
        await self._step(view, -1)

    async def newer_branch(self, view: MessageView) -> None:
        """Show the branch after the one that a message begins."""
        await self._step(view, 1)

    async def _step(self, view: MessageView, step: int) -> None:
        index = self._index_of(view)
        if index is None:
            return
        message = self._core.chat_session.conversation.messages[index]
        number = message.n_older + step
        if not 0 <= number <= len(message.alternatives):
            end = "first" if step < 0 else "last"
            self._core.edge.hint_for(HINT_S, f"this is the {end} branch {message.branch_mark}")
            return
        has_focus = view.has_focus
        if await self.show(index, number) and has_focus:
            self._conversations.focus_message(index)

    def _index_of(self, view: MessageView) -> int | None:
        """Return the index of a message that has branches; None, and say so, if it has none."""
        index = self._core.index_of(view)
        if index is None:
            self._core.say(NOT_IN_CONVERSATION)
        elif not view.branch_mark:
            hint = "no other branch here: editing or answering again begins one"
            self._core.edge.hint_for(HINT_S, hint)
            return None
        return index

    async def show(self, index: int, number: int) -> bool:
        """Show the branch with a number from the message at an index; False if it is refused."""
        with self._core.refusals_said(is_error=False):
            return await self._change(index, partial(show_branch, index=index, number=number))
        return False

    async def _change(self, index: int, change: Callable[[Conversation], object]) -> bool:
        core = self._core
        chat_session = core.chat_session
        if core.refuses_while_busy():
            return False
        self._editing.cancel()
        conversation = chat_session.conversation
        view = core.transcript.view_of(conversation.messages[index])
        n_dropped = conversation.n_dropped
        chat_session.change_conversation(change)
        if view is None or conversation.n_dropped != n_dropped:
            await self._conversations.show_again()
        else:
            await core.transcript.replace_from(view, conversation.messages[index:])

        replies = core.transcript.replies()
        last = chat_session.last_message
        if conversation.awaits_reply:
            core.say(NO_REPLY)
        elif replies and chat_session.can_continue:
            replies[-1].offer(CONTINUE_OFFER)
        elif replies and last is not None and last.alternatives:
            replies[-1].offer(ANSWERS_OFFER)
        return True

    # ---- deleting

    def delete_branch(self, view: MessageView) -> None:
        """Ask whether to delete the branch that a message begins."""
        index = self._index_of(view)
        if index is not None:
            self._ask_to_delete(index)

    def _ask_to_delete(self, index: int) -> None:
        core = self._core
        if core.refuses_while_busy():
            return
        question = commands.delete_branch_question(core.chat_session.conversation, index)
        screen = make_screen(
            "question",
            question,
            core.keymap,
            core.engine_thread.now_s,
            kind="DeleteBranchScreen",
        )
        core.screen.app.push_screen(screen, partial(self._delete, index))

    async def _delete(self, index: int, is_agreed: bool | None) -> None:
        if not is_agreed:
            return
        with self._core.refusals_said():
            if await self._change(index, partial(delete_branch, index=index)):
                shown = commands.branch_line(self._core.chat_session.conversation, index)
                self._core.say(f"The branch is deleted. Now: {shown}")
