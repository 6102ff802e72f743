"""What can be done with the messages that are there: go to one, copy it, go on, answer again, edit and ask again."""

from __future__ import annotations

import os

from textual import on

from app import clipboard
from app.code_blocks import code_blocks
from app.conversation import ChatMessage
from app.messages import MessageKeyPressed, MessageLeft
from app.screens.message_editing import MessageEditing
from app.widgets.message_view import MessageView, ReplyView, UserView


class MessageActions(MessageEditing):
    """The part of the chat that acts on messages."""

    # ---- going to messages

    def action_focus_older(self) -> None:
        """Go from the prompt to the newest message, from a message to the one above."""
        self._step(-1)

    def action_focus_newer(self) -> None:
        """Go to the message below; from the newest, to the prompt."""
        self._step(1)

    def _step(self, step: int) -> None:
        views = self.transcript.messages()
        at = (
            views.index(self.focused) if isinstance(self.focused, MessageView) and self.focused in views else len(views)
        )
        if at + step >= len(views):
            self._go_to_prompt()
            return
        if at + step < 0 and self.transcript.show_earlier():
            views, n_shown = self.transcript.messages(), len(views)
            at += len(views) - n_shown
        if at + step >= 0:
            self.transcript.release_anchor()
            views[at + step].focus()
            self.hint(self._keys_of(views[at + step]))

    @on(MessageLeft)
    def _leave_message(self, message: MessageLeft) -> None:
        self._go_to_prompt()
        if message.event is not None:
            self.prompt.post_message(message.event)

    def focus_stopped(self, view: ReplyView) -> None:
        """Put the focus on a reply that Esc stopped, unless the user is writing the next message."""
        if self.focused is self.prompt and not self.prompt.text:
            view.hesitates = True
            view.focus()
            self.hint(self._keys_of(view))

    def _keys_of(self, view: MessageView) -> str:
        """Name the keys that do something on this message."""
        words = {"copy_message": "copy"}
        if isinstance(view, ReplyView) and "```" in view.text:
            words["copy_code"] = "code"
        if self._is_last(view) and self.turns.can_continue:
            words["continue_here"] = "goes on"
        if isinstance(view, ReplyView):
            words["regenerate_here"] = "again"
        words["edit_here"] = "edit"
        words["fork_here"] = "fork"
        if isinstance(view, ReplyView) and view.thinking is not None:
            words["toggle_thinking"] = "thinking"
        keys = {f"message.{name}": word for name, word in words.items()} | {"chat.stop": "back"}
        first_key = self._habits.keymap.first_key
        return " · ".join(f"{first_key(action_id)} {word}" for action_id, word in keys.items() if first_key(action_id))

    # ---- keys on a message

    @on(MessageKeyPressed)
    async def _act_on_message(self, pressed: MessageKeyPressed) -> None:
        view = pressed.view
        if pressed.name == "copy_message":
            await self.copy_out(_text_to_copy(view))
        elif pressed.name == "copy_code":
            await self._copy_next_block(view)
        elif pressed.name == "continue_here":
            self._continue_at(view)
        elif pressed.name == "regenerate_here":
            self._regenerate_at(view)
        elif pressed.name == "edit_here":
            self._edit_at(view)
        elif pressed.name == "fork_here":
            await self.fork_at(view)
        elif pressed.name == "toggle_thinking" and not (isinstance(view, ReplyView) and view.toggle_thinking()):
            self.note("there is no thinking in this message")

    async def fork_at(self, view: MessageView) -> None:
        """Go on with a copy of the conversation that ends here."""
        raise NotImplementedError

    def _continue_at(self, view: MessageView) -> None:
        if self._is_last(view):
            self.action_continue_reply()
        else:
            self.note("only the last reply can go on")

    def _regenerate_at(self, view: MessageView) -> None:
        if self._is_last(view) or (view is self._last_view_of_user() and self.turns.conversation.awaits_reply):
            self.action_regenerate()
        else:
            self._edit_at(view, is_question=True)

    def _edit_at(self, view: MessageView, is_question: bool = False) -> None:
        """Edit a message, or the question that it answers."""
        index = self._index_of(view)
        if index is None:
            self.note("this message is no part of the conversation any more")
        else:
            self._begin_edit(index - index % 2 if is_question else index)

    def _is_last(self, view: MessageView) -> bool:
        messages = self.turns.conversation.messages
        return bool(messages) and view.message is messages[-1]

    def _last_view_of_user(self) -> MessageView | None:
        return next((view for view in reversed(self.transcript.messages()) if isinstance(view, UserView)), None)

    # ---- going on and answering again

    def action_continue_reply(self) -> None:
        """Go on with the last reply where it was stopped."""
        if self._refuses_while_busy():
            return
        view = self._last_view()
        if not self.turns.continue_reply():
            self.note("there is no unfinished reply at the end" if self.turns.model else "no model is loaded")
            return
        self.cancel_edit()
        self._replace([view] if view is not None else [])
        self._go_to_prompt()

    def action_regenerate(self) -> None:
        """Answer the last message again."""
        if self._refuses_while_busy():
            return
        view, awaits_reply = self._last_view(), self.turns.conversation.awaits_reply
        if not self.turns.regenerate():
            self.note("there is nothing to answer again" if self.turns.model else "no model is loaded")
            return
        self.cancel_edit()
        if awaits_reply:
            self._asked = view if isinstance(view, UserView) else None
            if self._asked is not None:
                self._asked.mark("")
                self._asked.message = self.turns.conversation.messages[-1]
        else:
            self._replace([view] if view is not None else [])
        self._go_to_prompt()

    def _last_view(self) -> MessageView | None:
        messages = self.turns.conversation.messages
        return self.transcript.view_of(messages[-1]) if messages else None

    # ---- copying

    async def action_copy(self, what: str = "") -> None:
        """Copy the last reply, its n-th code block, or its thinking; with "file" into a file."""
        words = what.lower().split()
        to_file = "file" in words
        words = [word for word in words if word != "file"]
        reply = self.turns.conversation.last_reply
        if reply is None:
            self.note("there is no reply to copy")
        elif not words:
            await self.copy_out(reply.text or (reply.thinking.text if reply.thinking else ""), to_file)
        elif words == ["thinking"]:
            await self._copy_thinking(reply, to_file)
        elif words[0] == "code" and len(words) <= 2:
            await self._copy_block(reply.text, words[1] if len(words) == 2 else "1", to_file)
        else:
            self.note("usage: /copy · /copy code · /copy code 2 · /copy thinking; with `file` behind it into a file")

    async def _copy_thinking(self, reply: ChatMessage, to_file: bool) -> None:
        if reply.thinking is None:
            self.note("there is no thinking in the last reply")
        else:
            await self.copy_out(reply.thinking.text.strip(), to_file)

    async def _copy_block(self, text: str, number: str, to_file: bool) -> None:
        blocks = code_blocks(text)
        if not blocks:
            self.note("there is no code block in this message")
        elif not (number.isdecimal() and 1 <= int(number) <= len(blocks)):
            self.note(f"there are code blocks 1 to {len(blocks)}")
        else:
            await self.copy_out(blocks[int(number) - 1], to_file, f"code block {int(number)} of {len(blocks)}")

    async def _copy_next_block(self, view: MessageView) -> None:
        n_blocks = len(code_blocks(view.text)) if isinstance(view, ReplyView) else 0
        if not isinstance(view, ReplyView) or not n_blocks:
            self.note("there is no code block in this message")
            return
        number = view.next_block % n_blocks + 1
        view.next_block = number
        await self._copy_block(view.text, str(number), False)

    async def copy_out(self, text: str, to_file: bool = False, what: str = "") -> None:
        """Copy a text and say by which route."""
        if not text:
            self.note("there is no text to copy")
            return
        route = await clipboard.copy(text, self.app.copy_to_clipboard, os.environ, to_file)
        self.note(f"{what}: {route}" if what else route)

    def action_thinking(self) -> None:
        """Show or fold what the model thought before the newest reply."""
        views = self.transcript.replies()
        if not views or not views[-1].toggle_thinking():
            self.note("there is no thinking in the last reply")


def _text_to_copy(view: MessageView) -> str:
    """What a message says; of a reply that has only thinking so far, that."""
    if isinstance(view, ReplyView) and not view.text and view.thinking is not None:
        return view.thinking.text
    return view.text
