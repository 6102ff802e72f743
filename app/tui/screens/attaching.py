"""Brings files to the message: reads them in the background, and holds what is sent meanwhile until they are here."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from app.conversations.conversation import Conversation
from app.documents.passages import FileText, announcement, fit, for_message, n_tokens
from app.documents.read import Document, Reading, read_documents, referred, split_wanted
from app.program.background import in_background
from app.tui.actions import ACTIONS, find_command, split_command
from app.tui.draft import Draft, files_end
from app.tui.messages import PromptSubmitted
from app.tui.screens.chat_parts import ChatParts
from app.tui.screens.message_editing import MessageEditing

_WORTH_A_LINE_TOKENS = 500
"""The cost of fewer tokens is said at the prompt's edge alone."""


class Attaching:
    """Knows the files of the next message; ``take`` sends one, or carries out a command."""

    def __init__(
        self, parts: ChatParts, editing: MessageEditing, take: Callable[[PromptSubmitted], Awaitable[None]]
    ) -> None:
        self._screen, self._turns, self._bridge = parts.screen, parts.turns, parts.bridge
        self._prompt, self._drafting, self._note = parts.prompt, parts.drafting, parts.notes.note
        self._editing, self._take = editing, take
        self._n_awaited = 1
        """Readings that are not done, and the engine's start."""
        self._held: list[PromptSubmitted] = []
        self._ready: PromptSubmitted | None = None
        """Has its files."""
        self._documents: tuple[Document, ...] = ()
        """Too large for the context: passages of them go with messages."""
        self._asked_in: Conversation | None = None
        """The conversation that has passages of them; None before the first."""
        parts.prompt.carry_out_at_once = self._attach_at_once
        parts.prompt.attach_chosen = self.attach

    # ---- files that a command or the list names

    def attach(self, *names: str) -> None:
        """Begin to read files, folders and patterns."""
        self._begin(self._attach(names))

    def attach_wanted(self, wanted: str) -> None:
        """Begin to read what stands behind a command."""
        self.attach(*split_wanted(wanted))

    def _attach_at_once(self, draft: Draft) -> bool:
        """Begin to read files if that is what was sent: a message that is sent next waits for them."""
        word, argument = split_command(draft.text.strip()) or ("", "")
        if find_command(word) is not ACTIONS["chat.read"] or not argument or self._editing.is_editing_reply:
            return False
        if trouble := self._drafting.keep(draft):
            self._note(trouble, is_error=True)
        self.attach_wanted(argument)
        return True

    async def _attach(self, names: Sequence[str]) -> None:
        reading: Reading = await wrap_future(in_background(partial(read_documents, names), "documents"))
        documents = self._tell(reading)
        if not reading.documents:
            return
        if not fit(documents, self._n_ctx):
            self._documents, self._asked_in = documents, None
            return
        self._documents = ()
        files = self._new_of(for_message(documents, "", self._n_ctx, self._turns.conversation.asked), documents)
        message = next((one for one in self._held if not _is_command(one.draft)), None)
        if message is None and files:
            self._prompt.attach(files)
        elif message is not None:
            self._complete(message, files)

    def _tell(self, reading: Reading) -> tuple[Document, ...]:
        """Say what was read; return it with what stays from before, in the tokens that the open model makes of it."""
        for trouble in reading.troubles:
            self._note(trouble, is_error=True)
        model = self._turns.model
        documents = reading.with_earlier(self._earlier, model.tokens_ratio if model is not None else 1.0)
        is_worth_it = n_tokens(documents) >= _WORTH_A_LINE_TOKENS or not fit(documents, self._n_ctx)
        if reading.documents and is_worth_it:
            tps = self._drafting.estimator.prefill_tps or self._bridge.status.usual_prefill_tps
            self._note(announcement(documents, self._n_ctx, tps))
        return documents

    # ---- what is sent

    def holds(self, message: PromptSubmitted) -> bool:
        """Whether a message has to wait: for files, or for the engine's start. It is sent when they are here."""
        if self._n_awaited:
            self._held.append(message)
            return True
        if message is self._ready or _is_command(message.draft) or self._editing.is_editing_reply:
            return False
        names = referred(message.draft.shown)
        if not names and not self._earlier:
            return False
        self._held.append(message)
        self._begin(self._find_files(message, names))
        return True

    async def done(self) -> None:
        """Something that was waited for is here."""
        self._n_awaited -= 1
        if not self._n_awaited:
            held, self._held = self._held, []
            for message in held:
                await self._take(message)

    async def _find_files(self, message: PromptSubmitted, names: Sequence[str]) -> None:
        """Read the files that a message names, and choose what of the documents goes with it."""
        self._ready = message
        reading = await wrap_future(in_background(partial(read_documents, names, only_existing=True), "documents"))
        documents, self._documents = self._tell(reading), ()
        if not documents:
            return
        shown, conversation = message.draft.shown, self._turns.conversation
        question = shown[files_end(shown, message.draft.folds) :]
        choose = partial(for_message, documents, question, self._n_ctx, conversation.asked)
        files = await wrap_future(in_background(choose, "documents"))
        if fit(documents, self._n_ctx):
            files = self._new_of(files, documents)
        else:
            self._documents, self._asked_in = documents, conversation
        self._complete(message, files)

    @property
    def _earlier(self) -> tuple[Document, ...]:
        """Documents that passages come from, unless that was in another conversation."""
        is_here = self._asked_in is None or self._asked_in is self._turns.conversation
        return self._documents if is_here else ()

    def _new_of(self, files: list[FileText], documents: Sequence[Document]) -> list[FileText]:
        """Say which documents the conversation has already."""
        new = {file.name for file in files}
        for name in (one.name for one in documents if one.name not in new):
            self._note(f"{name} stands in the conversation already, and is not sent again")
        return files

    def _complete(self, message: PromptSubmitted, files: Sequence[FileText]) -> None:
        message.draft = message.draft.with_files(files)
        message.text = message.draft.text
        self._prompt.past.add(message.draft)  # where it is found if the message is given back

    def _begin(self, work: Awaitable[None]) -> None:
        self._n_awaited += 1
        self._screen.run_worker(self._see_through(work), group="documents")

    async def _see_through(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            self._screen.call_later(self.done)  # in the screen's turn, as if it had been sent now

    @property
    def _n_ctx(self) -> int:
        return self._turns.model.n_ctx if self._turns.model is not None else 0


def _is_command(draft: Draft) -> bool:
    text = draft.shown.strip()
    return text == "/" or split_command(text) is not None
