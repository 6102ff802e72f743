"""Sends from the prompt: messages, edits and commands; and gives back what was refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from textual.worker import Worker

from app.chat.turns import MAX_QUEUED, Admission
from app.conversations.records import fits
from app.text.clean_text import clean_text
from app.tui.actions import Action, find_command, nearest_command, split_command
from app.tui.draft import Draft
from app.tui.messages import PromptSubmitted
from app.tui.screens.chat_parts import ChatParts
from app.tui.screens.message_editing import MessageEditing
from app.tui.screens.model_flow import how_to_load


class PromptFlow:
    """Takes what is sent; ``carry_out`` does what a command asks for."""

    def __init__(
        self, parts: ChatParts, editing: MessageEditing, carry_out: Callable[[Action, str], Awaitable[None]]
    ) -> None:
        self._screen, self._turns, self._keymap = parts.screen, parts.turns, parts.keymap
        self._transcript, self._prompt, self._drafting = parts.transcript, parts.prompt, parts.drafting
        self._views, self._note = parts.views, parts.notes.note
        self._editing, self._carry_out = editing, carry_out
        self._editor: Worker[None] | None = None
        """While the user's editor has the terminal."""

    async def take(self, message: PromptSubmitted) -> None:
        """Send a message, or carry out a command."""
        if not (fits(message.text) and fits(message.draft.shown)):
            self._note("Not sent: the message is too long.")
            self._prompt.give_back(message.text)
            return
        if self._editing.is_editing_reply:
            if not self._editing.send(clean_text(message.text)):
                self._prompt.give_back(message.text)
            return
        text = message.text.strip()
        command = ("", "") if text == "/" else split_command(text)
        if trouble := self._drafting.keep(message.draft):
            self._note(trouble, is_error=True)
        # A refused command stays in the history: left in the prompt, what is typed next would become part of it.
        if command is not None:
            await self._run_command(*command)
        elif not self._send(clean_text(text), message.draft):
            self._prompt.give_back(message.text)

    def _send(self, text: str, draft: Draft) -> bool:
        folded = clean_text(draft.shown.strip()) if draft.folds else ""
        if self._editing.is_editing:
            return self._editing.send(text, folded)
        admission = self._turns.submit(text, folded)
        if admission is Admission.NO_MODEL:
            self._note(how_to_load(self._keymap))
        elif admission is Admission.FULL:
            self._note(f"Queue full ({MAX_QUEUED} messages). Not sent.")
        elif admission is Admission.QUEUED:
            view = self._transcript.add_user(text, folded)
            view.mark("queued · Up in an empty prompt takes it back")
            self._transcript.waiting.append(view)
            self._prompt.has_waiting = True
        else:
            self._views.ask(self._transcript.add_user(text, folded))
        return admission in (Admission.ASKED, Admission.QUEUED)

    async def _run_command(self, word: str, argument: str) -> None:
        action = find_command(word)
        if action is None:
            nearest = nearest_command(word) if word else "help"
            hint = f"Did you mean /{nearest}? Up brings it back." if nearest else "/help lists them"
            self._note(f"Unknown command /{word}. {hint}", is_error=True)
        elif action.needs_argument and not argument:
            self._note(action.usage)
        elif argument and not action.argument:
            self._note(f"/{action.command} takes no argument.", is_error=True)
        else:
            await self._carry_out(action, argument)

    async def take_back(self) -> None:
        """Take the newest message back that waits for its turn, to change it or to drop it."""
        text = self._turns.take_back_queued()
        if text is None:
            self._note("no message waits")
            return
        await self._transcript.waiting.pop().remove()
        self._prompt.has_waiting = bool(self._transcript.waiting)
        self._prompt.give_back(text)

    def edit_externally(self) -> None:
        """Write the message in the user's editor."""
        # Not awaited here: what a reply brings meanwhile is taken in and saved, and signals are heard.
        if self._editor is None or self._editor.is_finished:
            self._editor = self._screen.run_worker(self._use_editor())

    async def _use_editor(self) -> None:
        if line := await self._drafting.edit_externally(self._screen.app):
            self._note(line, is_error=True)
