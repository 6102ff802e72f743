"""Actions on messages: copy what stands in them, continue, answer again, edit and ask again."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from app.chat.thinking_command import USAGE
from app.program import clipboard
from app.program.refusals import Refusal
from app.tui.markdown.code_blocks import ToCopy, code_blocks, wanted_block, wanted_text
from app.tui.screens.chat_parts import NOT_PART, ChatParts
from app.tui.screens.message_editing import MessageEditing
from app.tui.widgets.message_view import MessageKeyPressed, MessageView, ReplyView, ToolView, UserView


class MessageActions:
    """Acts on messages; ``fork`` goes on with a copy of the conversation that ends with one."""

    def __init__(
        self, parts: ChatParts, editing: MessageEditing, fork: Callable[[MessageView], Awaitable[None]]
    ) -> None:
        self._screen, self._turns, self._bridge = parts.screen, parts.turns, parts.bridge
        self._transcript, self._views, self._focus = parts.transcript, parts.views, parts.focus
        self._notes, self._editing = parts.notes, editing
        self.by_name: dict[str, Callable[[MessageView], Awaitable[None] | None]] = {
            "copy_message": self._copy_message,
            "copy_code": self._copy_next_block,
            "continue_here": self._continue_at,
            "regenerate_here": self._regenerate_at,
            "edit_here": self._edit_at,
            "fork_here": fork,
            "toggle_thinking": self._toggle_thinking,
        }
        """What a key on a message does, by the name of its action."""

    async def act_on_message(self, pressed: MessageKeyPressed) -> None:
        """Do what a key on a message asks for."""
        outcome = self.by_name[pressed.name](pressed.view)
        if outcome is not None:
            await outcome

    def _toggle_thinking(self, view: MessageView) -> None:
        if isinstance(view, ToolView):
            view.unfold(not view.is_unfolded)
        elif not (isinstance(view, ReplyView) and view.toggle_thinking()):
            self._notes.note("there is no thinking in this message")

    def toggle_last_thinking(self) -> None:
        """Show or fold what the model thought before the newest reply."""
        views = self._transcript.replies()
        if not views or not views[-1].toggle_thinking():
            self._notes.note(f"there is no thinking in the last reply ({USAGE})")

    def _continue_at(self, view: MessageView) -> None:
        if view.message is self._turns.last_message:
            self.continue_reply()
        else:
            self._notes.note("only the last reply can go on")

    def _regenerate_at(self, view: MessageView) -> None:
        users = [one for one in self._transcript.messages() if isinstance(one, UserView)]
        is_unanswered = view in users[-1:] and self._turns.conversation.awaits_reply
        if is_unanswered or view.message is self._turns.last_message:
            self.regenerate()
        else:
            self._edit_at(view, is_question=True)

    def _edit_at(self, view: MessageView, is_question: bool = False) -> None:
        """Edit a message, or the question that it answers."""
        index = self._editing.index_of(view)
        if index is None:
            self._notes.note(NOT_PART)
        else:
            self._editing.begin(index - index % 2 if is_question else index)

    # ---- going on and answering again

    def continue_reply(self) -> None:
        """Go on with the last reply where it was stopped."""
        if self._notes.refuses_while_busy():
            return
        view = self._last_view()
        if not self._turns.continue_reply():
            self._notes.note("there is no unfinished reply at the end" if self._turns.model else "no model is loaded")
            return
        self._editing.cancel()
        self._views.replace([view] if view is not None else [])
        self._focus.to_prompt()

    def regenerate(self) -> None:
        """Answer the last message again."""
        if self._notes.refuses_while_busy():
            return
        view, awaits_reply = self._last_view(), self._turns.conversation.awaits_reply
        if not self._turns.regenerate():
            self._notes.note("there is nothing to answer again" if self._turns.model else "no model is loaded")
            return
        self._editing.cancel()
        if awaits_reply:
            asked = self._views.asked = view if isinstance(view, UserView) else None
            if asked is not None:
                asked.mark("")
                asked.message = self._turns.last_message
        else:
            self._views.replace([view] if view is not None else [])
        self._focus.to_prompt()

    def _last_view(self) -> MessageView | None:
        last = self._turns.last_message
        return self._transcript.view_of(last) if last is not None else None

    # ---- copying

    async def copy(self, what: str = "") -> None:
        """Copy the last reply, its n-th code block, or its thinking; with "file" into a file."""
        await self._copy(lambda: wanted_text(self._turns.conversation.last_reply, what))

    async def _copy(self, find: Callable[[], ToCopy]) -> None:
        try:
            found = find()
        except Refusal as refusal:
            self._notes.note(str(refusal))
        else:
            await self.copy_out(found.text, found.to_file, found.name)

    async def report(self, wanted: str = "") -> None:
        """Copy a card with machine, model and speeds, or write it into a file."""
        from app.library.report_card import as_text, report_of_chat, write_card  # no first frame waits for it

        try:
            card = report_of_chat(self._bridge, self._turns)
            if wanted:
                self._notes.note(write_card(card, wanted))
            else:
                self._notes.note(as_text(card))
                await self.copy_out(as_text(card))
        except Refusal as refusal:
            self._notes.note(str(refusal), is_error=True)

    async def _copy_message(self, view: MessageView) -> None:
        """Copy what a message says; of a reply without an answer yet, its thinking."""
        thinking = view.thinking if isinstance(view, ReplyView) else None
        await self.copy_out(thinking.text if thinking is not None and not view.text else view.text)

    async def _copy_next_block(self, view: MessageView) -> None:
        """Copy the code block of a reply that follows the one copied last."""
        n_blocks = len(code_blocks(view.text)) if isinstance(view, ReplyView) else 0
        if not isinstance(view, ReplyView) or not n_blocks:
            self._notes.note("there is no code block in this message")
            return
        view.next_block = view.next_block % n_blocks + 1
        await self._copy(lambda: wanted_block(view.text, str(view.next_block)))

    async def copy_out(self, text: str, to_file: bool = False, what: str = "") -> None:
        """Copy a text and say by which route."""
        if not text:
            self._notes.note("there is no text to copy")
            return
        route = await clipboard.copy(text, self._screen.app.copy_to_clipboard, os.environ, to_file)
        self._notes.note(f"{what}: {route}" if what else route)
