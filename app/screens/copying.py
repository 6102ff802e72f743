"""How text leaves the chat for the clipboard."""

from __future__ import annotations

import os

from app import clipboard
from app.code_blocks import code_blocks
from app.conversation import ChatMessage
from app.screens.chat_parts import ChatParts
from app.widgets.message_view import MessageView, ReplyView


class Copying:
    """Copies messages and what stands in them."""

    def __init__(self, parts: ChatParts) -> None:
        self._screen, self._turns, self._notes = parts.screen, parts.turns, parts.notes

    async def copy(self, what: str = "") -> None:
        """Copy the last reply, its n-th code block, or its thinking; with "file" into a file."""
        words = what.lower().split()
        to_file = "file" in words
        words = [word for word in words if word != "file"]
        reply = self._turns.conversation.last_reply
        if reply is None:
            self._notes.note("there is no reply to copy")
        elif not words:
            await self.copy_out(reply.text or (reply.thinking.text if reply.thinking else ""), to_file)
        elif words == ["thinking"]:
            await self._copy_thinking(reply, to_file)
        elif words[0] == "code" and len(words) <= 2:
            await self._copy_block(reply.text, words[1] if len(words) == 2 else "1", to_file)
        else:
            self._notes.note(
                "usage: /copy · /copy code · /copy code 2 · /copy thinking; with `file` behind it into a file"
            )

    async def _copy_thinking(self, reply: ChatMessage, to_file: bool) -> None:
        if reply.thinking is None:
            self._notes.note("there is no thinking in the last reply")
        else:
            await self.copy_out(reply.thinking.text.strip(), to_file)

    async def _copy_block(self, text: str, number: str, to_file: bool) -> None:
        blocks = code_blocks(text)
        if not blocks:
            self._notes.note("there is no code block in this message")
        elif not (number.isdecimal() and 1 <= int(number) <= len(blocks)):
            self._notes.note(f"there are code blocks 1 to {len(blocks)}")
        else:
            await self.copy_out(blocks[int(number) - 1], to_file, f"code block {int(number)} of {len(blocks)}")

    async def copy_message(self, view: MessageView) -> None:
        """Copy what a message says."""
        await self.copy_out(_text_to_copy(view))

    async def copy_next_block(self, view: MessageView) -> None:
        """Copy the code block of a reply that follows the one copied last."""
        n_blocks = len(code_blocks(view.text)) if isinstance(view, ReplyView) else 0
        if not isinstance(view, ReplyView) or not n_blocks:
            self._notes.note("there is no code block in this message")
            return
        number = view.next_block % n_blocks + 1
        view.next_block = number
        await self._copy_block(view.text, str(number), False)

    async def copy_out(self, text: str, to_file: bool = False, what: str = "") -> None:
        """Copy a text and say by which route."""
        if not text:
            self._notes.note("there is no text to copy")
            return
        route = await clipboard.copy(text, self._screen.app.copy_to_clipboard, os.environ, to_file)
        self._notes.note(f"{what}: {route}" if what else route)


def _text_to_copy(view: MessageView) -> str:
    """What a message says; of a reply that has only thinking so far, that."""
    if isinstance(view, ReplyView) and not view.text and view.thinking is not None:
        return view.thinking.text
    return view.text
