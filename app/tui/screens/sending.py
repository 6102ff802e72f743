"""Sends from the prompt: messages with their files, edits and commands; and gives back what was refused.

Files are read in the background; what is sent meanwhile is held until they are here.
"""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from textual.worker import Worker

from app.chat.events import GenerationFinished, PromptCounted
from app.chat.turns import MAX_QUEUED, Admission
from app.conversations.conversation import Conversation
from app.conversations.message_row import fits
from app.conversations.shelf import note_long
from app.documents.passages import FileText, announcement, fit, for_message, n_tokens
from app.documents.read import Document, ReadDocuments, read_documents, split_wanted
from app.program.background import in_background
from app.text import figures
from app.text.clean_text import clean_text
from app.tui.actions import ACTIONS, Action, find_command, nearest_command, split_command
from app.tui.draft import Draft, files_end
from app.tui.messages import PromptSubmitted
from app.tui.screens.chat_parts import ChatParts
from app.tui.screens.message_actions import MessageEditing
from app.tui.screens.model_flow import how_to_load
from app.tui.screens.surroundings import make_screen
from app.tui.widgets.message_view import Note

_WORTH_A_LINE_TOKENS = 500
"""The cost of fewer tokens is said at the prompt's edge alone."""


class Sending:
    """Takes what is sent; ``carry_out`` does what a command asks for, ``show_edge`` says what it led to."""

    def __init__(
        self,
        parts: ChatParts,
        editing: MessageEditing,
        carry_out: Callable[[Action, str], Awaitable[None]],
        show_edge: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._editing, self._carry_out, self._show_edge = editing, carry_out, show_edge
        self._editor: Worker[None] | None = None
        self._n_awaited = 1
        """Readings that are not done, and the engine's start."""
        self._held: list[PromptSubmitted] = []
        self._ready: PromptSubmitted | None = None
        self._refused: PromptSubmitted | None = None
        """The message whose files are not to be sent."""
        self._agreed_in: Conversation | None = None
        """The conversation whose files may go to a server."""
        self._documents: tuple[Document, ...] = ()
        """Too large for the context: passages of them go with messages."""
        self._told: Note | None = None
        """The line on files that go whole with a message."""
        self._told_of: tuple[Document, ...] = ()
        self._estimated = ""
        """The text of files that are in the prompt alone, until the engine has counted it."""
        self._asked_in: Conversation | None = None
        """The conversation that has passages of them; None before the first."""
        parts.prompt.carry_out_at_once = self._attach_at_once
        parts.prompt.attach_chosen = self.attach

    async def take(self, message: PromptSubmitted) -> None:
        """Send a message or carry out a command, unless it has to wait."""
        if not self._holds(message):
            if message is self._refused:
                self._parts.prompt.give_back(message.draft.text)
            else:
                await self._take(message.draft)
            self._show_edge()
            if self._parts.prompt.unheeded:
                self._parts.prompt.unheeded.popleft()

    async def _take(self, draft: Draft) -> None:
        if not (fits(draft.text) and fits(draft.shown)):
            self._parts.notes.note("Not sent: the message is too long.")
            self._parts.prompt.give_back(draft.text)
            return
        if self._editing.is_editing_reply:
            if not self._editing.send(clean_text(draft.text)):
                self._parts.prompt.give_back(draft.text)
            return
        text = draft.text.strip()
        command = ("", "") if text == "/" else split_command(text)
        if trouble := self._parts.drafting.keep(draft):
            self._parts.notes.note(trouble, is_error=True)
        # A refused command stays in the history: left in the prompt, what is typed next would become part of it.
        if command is not None:
            await self._run_command(*command)
        elif not self._send(clean_text(text), draft):
            self._parts.prompt.give_back(draft.text)

    def _send(self, text: str, draft: Draft) -> bool:
        folded = clean_text(draft.shown.strip()) if draft.folds else ""
        if self._editing.is_editing:
            return self._editing.send(text, folded)
        admission = self._parts.turns.submit(text, folded)
        if admission is Admission.NO_MODEL:
            self._parts.notes.note(how_to_load(self._parts.keymap))
        elif admission is Admission.FULL:
            self._parts.notes.note(f"Queue full ({MAX_QUEUED} messages). Not sent.")
        elif admission is Admission.QUEUED:
            view = self._parts.transcript.add_user(text, folded)
            view.mark("queued · Up in an empty prompt takes it back")
            self._parts.transcript.waiting.append(view)
        else:
            self._parts.views.ask(self._parts.transcript.add_user(text, folded))
        return admission in (Admission.ASKED, Admission.QUEUED)

    async def _run_command(self, word: str, argument: str) -> None:
        action = find_command(word)
        if action is None:
            nearest = nearest_command(word) if word else "help"
            hint = f"Did you mean /{nearest}? Up brings it back." if nearest else "/help lists them"
            self._parts.notes.note(f"Unknown command /{word}. {hint}", is_error=True)
        elif action.needs_argument and not argument:
            self._parts.notes.note(action.usage)
        elif argument and not action.argument:
            self._parts.notes.note(f"/{action.command} takes no argument.", is_error=True)
        else:
            await self._carry_out(action, argument)

    async def take_back(self) -> None:
        """Take the newest message back that waits for its turn, to change it or to drop it."""
        text = self._parts.turns.take_back_queued()
        if text is None:
            self._parts.notes.note("no message waits")
            return
        await self._parts.transcript.waiting.pop().remove()
        self._parts.prompt.give_back(text)

    def edit_externally(self) -> None:
        """Write the message in the user's editor."""
        # Not awaited here: what a reply brings meanwhile is taken in and saved, and signals are heard.
        if self._editor is None or self._editor.is_finished:
            self._editor = self._parts.screen.run_worker(self._use_editor())

    async def _use_editor(self) -> None:
        if line := await self._parts.drafting.edit_externally(self._parts.screen.app):
            self._parts.notes.note(line, is_error=True)

    # ---- files that a command or the list names

    def attach(self, *names: str) -> None:
        """Begin to read files, folders and patterns."""
        self._begin(self._attach(names))

    def attach_wanted(self, wanted: str) -> None:
        """Begin to read what comes after a command."""
        self.attach(*split_wanted(wanted))

    def _attach_at_once(self, draft: Draft) -> bool:
        """Begin to read files if that is what was sent: a message that is sent next waits for them."""
        word, argument = split_command(draft.text.strip()) or ("", "")
        if find_command(word) is not ACTIONS["chat.read"] or not argument or self._editing.is_editing_reply:
            return False
        if trouble := self._parts.drafting.keep(draft):
            self._parts.notes.note(trouble, is_error=True)
        self.attach_wanted(argument)
        return True

    async def _attach(self, names: Sequence[str]) -> None:
        reading: ReadDocuments = await wrap_future(in_background(partial(read_documents, names), "documents"))
        documents = self._tell(reading)
        if reading.documents:
            self._bring(documents)

    def bring(self, document: Document) -> None:
        """Put a document that was read before at the beginning of the message."""
        self._documents = ()
        documents = self._sized(ReadDocuments((document,)))
        if not fit(documents, self._n_ctx):
            self._parts.notes.note(announcement(documents, self._n_ctx, 0.0))
        self._bring(documents)

    def _bring(self, documents: tuple[Document, ...]) -> None:
        if not fit(documents, self._n_ctx):
            self._documents, self._asked_in = documents, None
            return
        self._documents = ()
        files = self._new_of(for_message(documents, "", self._n_ctx, self._parts.turns.conversation.asked), documents)
        message = next((one for one in self._held if not _is_command(one.draft)), None)
        if message is None and files:
            has_others = bool(self._parts.prompt.draft.documents)
            self._parts.prompt.attach(files)
            if not has_others:
                self._estimated = self._parts.prompt.draft.documents
                self._parts.drafting.estimator.suppose(self._estimated, n_tokens(documents))
        elif message is not None:
            self._complete(message, files)

    def _tell(self, reading: ReadDocuments) -> tuple[Document, ...]:
        """Say what was read; return it with what stays from before."""
        for trouble in reading.troubles:
            self._parts.notes.note(trouble, is_error=True)
        self._told, self._estimated = None, ""
        documents = self._sized(reading)
        is_worth_it = n_tokens(documents) >= _WORTH_A_LINE_TOKENS or not fit(documents, self._n_ctx)
        if reading.documents and is_worth_it:
            tps = self._parts.drafting.estimator.prefill_tps or self._parts.bridge.status.usual_prefill_tps
            told = self._parts.notes.note(announcement(documents, self._n_ctx, tps))
            self._told, self._told_of = (told if fit(documents, self._n_ctx) else None), documents
        return documents

    def note_count(self, event: PromptCounted) -> None:
        """The engine has counted the prompt; of files alone, their line says what the prompt's edge does."""
        if event.text == self._estimated:
            self._say_count(event.tokens, "")

    def note_reply(self, event: GenerationFinished) -> None:
        """A message was read: the line on files that were sent before they were counted alone says how long it was."""
        asked, starts = self._parts.turns.conversation.asked, self._parts.bridge.status.turn_starts
        if self._told is not None and starts and all(one.in_message.strip() in asked for one in self._told_of):
            n_tokens = event.figures.prompt_tokens + event.figures.reused_tokens - starts[-1]
            self._say_count(n_tokens, " with the question")

    def _say_count(self, n_tokens: int, of_what: str) -> None:
        if self._told is not None:
            name = self._told.text.rpartition(": about ")[0]
            self._told.say(f"{name}: {figures.count(n_tokens)} tokens{of_what}")
        self._told, self._estimated = None, ""

    def _sized(self, reading: ReadDocuments) -> tuple[Document, ...]:
        """Return what was read with what stays from before, in the tokens that the open model makes of it."""
        model = self._parts.turns.model
        return reading.with_earlier(self._earlier, model.tokens_ratio if model is not None else 1.0)

    # ---- files of what is sent

    def _holds(self, message: PromptSubmitted) -> bool:
        """Whether a message has to wait: for files, or for the engine's start. It is sent when they are here."""
        if self._n_awaited:
            self._held.append(message)
            return True
        if message is self._refused or _is_command(message.draft) or self._editing.is_editing_reply:
            return False
        if message is self._ready:
            return self._asks_first(message)
        names = message.draft.referred
        if not names and not self._earlier:
            return self._asks_first(message)
        self._held.append(message)
        self._begin(self._find_files(message, names))
        return True

    def _asks_first(self, message: PromptSubmitted) -> bool:
        """Whether the user is asked before the files of a message go to a server; once for a conversation."""
        host = self._parts.turns.model.server if self._parts.turns.model is not None else ""
        if not host or not message.draft.files_line or self._agreed_in is self._parts.turns.conversation:
            return False
        self._held.append(message)
        self._begin(self._ask_about_files(message, host))
        return True

    async def _ask_about_files(self, message: PromptSubmitted, host: str) -> None:
        files = message.draft.files_line
        question = make_screen(
            "question", files, host, self._parts.keymap, self._parts.bridge.now_s, kind="SendFilesScreen"
        )
        if await self._parts.screen.app.push_screen_wait(question):
            self._agreed_in, self._ready = self._parts.turns.conversation, message
        else:
            self._refused = message
            self._parts.notes.note(f"not sent: {files} stays here")

    async def done(self) -> None:
        """Something that was waited for is here."""
        self._n_awaited -= 1
        if not self._n_awaited:
            held, self._held = self._held, []
            for message in held:
                await self.take(message)

    async def _find_files(self, message: PromptSubmitted, names: Sequence[str]) -> None:
        """Read the files that a message names, and choose what of the documents goes with it."""
        self._ready = message
        reading = await wrap_future(in_background(partial(read_documents, names, only_existing=True), "documents"))
        documents, self._documents = self._tell(reading), ()
        if not documents:
            return
        shown, conversation = message.draft.shown, self._parts.turns.conversation
        question = shown[files_end(shown, message.draft.folds) :]
        likeness = self._parts.around.shelf.meaning.likeness
        choose = partial(for_message, documents, question, self._n_ctx, conversation.asked, likeness)
        files = await wrap_future(in_background(choose, "documents"))
        store = self._parts.around.at_hand.store
        if files and store is not None and not fit(documents, self._n_ctx):
            await wrap_future(in_background(partial(note_long, store, documents), "shelf"))
        if fit(documents, self._n_ctx):
            files = self._new_of(files, documents)
        else:
            self._documents, self._asked_in = documents, conversation
        message.draft = Draft(shown, message.draft.folds)  # what it names is read: given back, it is not read again
        self._complete(message, files)

    @property
    def _earlier(self) -> tuple[Document, ...]:
        """Documents that passages come from, unless that was in another conversation."""
        is_here = self._asked_in is None or self._asked_in is self._parts.turns.conversation
        return self._documents if is_here else ()

    def _new_of(self, files: list[FileText], documents: Sequence[Document]) -> list[FileText]:
        """Say which documents the conversation has already."""
        new = {file.name for file in files}
        for name in (one.name for one in documents if one.name not in new):
            self._parts.notes.note(f"{name} stands in the conversation already, and is not sent again")
        return files

    def _complete(self, message: PromptSubmitted, files: Sequence[FileText]) -> None:
        message.draft = message.draft.with_files(files)
        self._parts.prompt.past.add(message.draft)  # where it is found if the message is given back

    def _begin(self, work: Awaitable[None]) -> None:
        self._n_awaited += 1
        self._parts.screen.run_worker(self._see_through(work), group="documents")

    async def _see_through(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            self._parts.screen.call_later(self.done)  # in the screen's turn, as if it had been sent now

    @property
    def _n_ctx(self) -> int:
        return self._parts.turns.model.n_ctx if self._parts.turns.model is not None else 0


def _is_command(draft: Draft) -> bool:
    text = draft.shown.strip()
    return text == "/" or split_command(text) is not None
