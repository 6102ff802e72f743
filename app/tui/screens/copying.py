"""How text leaves the chat for the clipboard."""

from __future__ import annotations

import os
from collections.abc import Callable

from app.program import clipboard
from app.program.refusals import Refusal
from app.tui.markdown.code_blocks import ToCopy, code_blocks, wanted_block, wanted_text
from app.tui.screens.chat_parts import ChatParts
from app.tui.widgets.message_view import MessageView, ReplyView


class Copying:
    """Copies messages and what stands in them."""

    def __init__(self, parts: ChatParts) -> None:
        self._screen, self._turns, self._notes = parts.screen, parts.turns, parts.notes
        self._bridge = parts.bridge

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

    async def copy_message(self, view: MessageView) -> None:
        """Copy what a message says; of a reply without an answer yet, its thinking."""
        thinking = view.thinking if isinstance(view, ReplyView) else None
        await self.copy_out(thinking.text if thinking is not None and not view.text else view.text)

    async def copy_next_block(self, view: MessageView) -> None:
        """Copy the code block of a reply that follows the one copied last."""
        n_blocks = len(code_blocks(view.text)) if isinstance(view, ReplyView) else 0
        if not isinstance(view, ReplyView) or not n_blocks:
            self._notes.note("there is no code block in this message")
            return
        number = view.next_block % n_blocks + 1
        view.next_block = number
        await self._copy(lambda: wanted_block(view.text, str(number)))

    async def copy_out(self, text: str, to_file: bool = False, what: str = "") -> None:
        """Copy a text and say by which route."""
        if not text:
            self._notes.note("there is no text to copy")
            return
        route = await clipboard.copy(text, self._screen.app.copy_to_clipboard, os.environ, to_file)
        self._notes.note(f"{what}: {route}" if what else route)
