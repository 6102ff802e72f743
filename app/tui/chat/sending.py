"""Sends from the prompt: messages with their files, edits and commands, and the queue of those that
wait.

Until then it watches over the draft: completions, history, what sending it would cost, reading
ahead. Files are read in the background; what is sent meanwhile is held until they are here.
"""

from __future__ import annotations

import os
from asyncio import wrap_future
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from functools import partial

from textual import on
from textual.timer import Timer
from textual.worker import Worker

from app.backend.local.read_ahead import MAX_CHARS
from app.conversations.conversation import Conversation
from app.conversations.document_list import save_long_documents
from app.conversations.message_row import fits
from app.documents.passages import FileText, announcement, fit, for_message, n_tokens
from app.documents.read import (
    Document,
    ReadDocuments,
    ReadingProgress,
    described,
    read_documents,
    split_wanted,
)
from app.program import paths
from app.program.background import in_background
from app.program.manual import topics
from app.program.personas import persona_names
from app.program.refusals import Refusal
from app.session.chat_session import MAX_QUEUED, Admission
from app.session.events import GenerationFinished, PromptCounted
from app.text import figures
from app.text.clean_text import clean_text
from app.tui.actions import ACTIONS, Action, find_command, nearest_command, split_command
from app.tui.chat.completing import Completion, Names, offered_at_once, offered_paths
from app.tui.chat.draft import Draft, files_end
from app.tui.chat.draft_cost import PromptEstimator
from app.tui.chat.history import append_history, read_history, save_unsent, take_unsent
from app.tui.chat.message_actions import MessageActions
from app.tui.chat.messages import PromptSubmitted, TakeBackRequested
from app.tui.chat_options import may_read_ahead
from app.tui.screens import make_screen
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import Note

TICK_S = 0.5
"""The estimate follows the text at this pace."""
QUIET_TICKS = 3
"""Ticks without a change after which the user is taken to be thinking, and the engine may read
ahead."""
_PROGRESS_S = 0.25
_WORTH_A_LINE_TOKENS = 500
"""The cost of fewer tokens is said at the prompt's edge alone."""


class _Reading:
    """Files that are being read in the background: how far it is, and whether the user stops it."""

    def __init__(self) -> None:
        self.progress: ReadingProgress | None = None
        self.is_stopped = False

    def follow(self, progress: ReadingProgress) -> bool:
        """Take the progress; return False to stop."""
        self.progress = progress
        return not self.is_stopped


class Sending(MessageActions):
    """Takes what is sent."""

    estimator: PromptEstimator
    _has_told_history = False
    """Whether it was said that the history is not kept."""
    _tick_timer: Timer | None = None
    _quiet_ticks = 0
    _seen_text = _counted_text = _prepared_text = ""
    _named_files: Sequence[str] = ()
    """Those whose names are in the draft."""
    _editor: Worker[None] | None = None
    _readings: tuple[_Reading, ...] = ()
    """Readings of files that go on now."""
    _n_awaited = 1
    """Readings that are not done, and the engine's start."""
    _held: Sequence[PromptSubmitted] = ()
    _ready: PromptSubmitted | None = None
    _refused: PromptSubmitted | None = None
    """The message whose files are not to be sent."""
    _sends_files_in: Conversation | None = None
    """The conversation whose files may go to a server."""
    _documents: tuple[Document, ...] = ()
    """Too large for the context: passages of them go with messages."""
    _passages_in: Conversation | None = None
    """The conversation that has passages of them; None before the first."""
    _told: Note | None = None
    """The line on files that go whole with a message."""
    _told_of: tuple[Document, ...] = ()
    _estimated = ""
    """The text of files that are in the prompt alone, until the engine has counted it."""

    def on_mount(self) -> None:
        """Let the prompt hand over what must be done before the next key."""
        self.estimator = PromptEstimator()
        self.prompt.carry_out_at_once = self._attach_at_once
        self.prompt.attach_chosen = self.attach

    # ---- messages, edits and commands

    @on(PromptSubmitted)
    async def send(self, message: PromptSubmitted) -> None:
        """Send a message or carry out a command, unless it has to wait."""
        if not self._holds(message):
            if message is self._refused:
                self.prompt.give_back(message.draft.text)
            else:
                await self._send(message.draft)
            self.show_edge()
            if self.prompt.unheeded:
                self.prompt.unheeded.popleft()

    async def _send(self, draft: Draft) -> None:
        if not (fits(draft.text) and fits(draft.shown)):
            self.note("Not sent: the message is too long.")
            self.prompt.give_back(draft.text)
            return
        if self.is_editing_reply:
            if not self.send_edit(clean_text(draft.text)):
                self.prompt.give_back(draft.text)
            return
        text = draft.text.strip()
        command = ("", "") if text == "/" else split_command(text)
        self._keep_in_history(draft)
        # A refused command stays in the history: left in the prompt, what is typed next would
        # become part of it.
        if command is not None:
            await self._run_command(*command)
        elif not self._send_message(clean_text(text), draft):
            self.prompt.give_back(draft.text)

    def _send_message(self, text: str, draft: Draft) -> bool:
        if draft.folds:
            folded = clean_text(draft.shown.strip())
        else:
            folded = ""
        if self.is_editing:
            return self.send_edit(text, folded)
        admission = self.chat_session.submit(text, folded)
        if admission is Admission.NO_MODEL:
            self.note_no_model()
        elif admission is Admission.FULL:
            self.note(f"Queue full ({MAX_QUEUED} messages). Not sent.")
        elif admission is Admission.QUEUED:
            view = self.transcript.add_user(text, folded)
            view.mark("queued · Up in an empty prompt takes it back")
            self.transcript.waiting.append(view)
        else:
            self.show_asked(self.transcript.add_user(text, folded))
        return admission in (Admission.SENT, Admission.QUEUED)

    async def _run_command(self, word: str, argument: str) -> None:
        action = find_command(word)
        if action is None:
            if word:
                nearest = nearest_command(word)
            else:
                nearest = "help"
            if nearest:
                hint = f"Did you mean /{nearest}? Up brings it back."
            else:
                hint = "/help lists them"
            self.note(f"Unknown command /{word}. {hint}", is_error=True)
        elif action.needs_argument and not argument:
            self.note(action.usage)
        elif argument and not action.argument:
            self.note(f"/{action.command} takes no argument.", is_error=True)
        else:
            await self._carry_out(action, argument)

    async def _carry_out(self, action: Action, argument: str) -> None:
        if action.shows:
            await self.app.run_action(action.call)
            return
        target = self.app if action.scope == "app" else self
        outcome = getattr(target, f"action_{action.name}")(*([argument] if action.argument else []))
        if outcome is not None:
            await outcome

    # ---- the queue

    def ask_next(self) -> None:
        """The engine may be free: ask what waits longest."""
        if self.chat_session.send_next():
            asked = self.transcript.waiting.popleft()
            asked.mark("")
            self.show_asked(asked)
        self._forget_count()
        self.estimator.forget_text()
        meter = self.engine_thread.status.meter
        if meter is not None:
            self.estimator.learn_read(meter.read_tokens, meter.prefill_s)

    @on(TakeBackRequested)
    async def take_back_into_prompt(self) -> None:
        """Take a message back for a key that meant an empty prompt; one pressed twice takes back
        one message."""
        if not self.prompt.text:
            await self.action_take_back()

    async def action_take_back(self) -> None:
        """Take the newest message back that waits for its turn, to change it or to drop it."""
        text = self.chat_session.take_back_queued()
        if text is None:
            self.note("no message waits")
            return
        await self.transcript.waiting.pop().remove()
        self.prompt.give_back(text)

    # ---- the draft: completions and history

    def note_draft(self) -> None:
        """The text in the prompt has changed: list what it could become, and find out what it
        costs."""
        typed = self.prompt.typed
        self.prompt.offer(offered_at_once(typed, self._names))
        looking = offered_paths(typed)
        # each goes its way: one that was called off before it began would never be awaited
        if looking is not None:
            self.run_worker(self._offer_paths(typed, looking), group="paths")
        names = self.prompt.draft.referred
        if names != self._named_files:
            self._named_files = names
            self.run_worker(self._show_files(names), group="files")
        if self._prepared_text and not self._next_text.startswith(self._prepared_text):
            self.engine_thread.inbox.idle_work.drop()
        self._wake()

    @property
    def _names(self) -> dict[str, Names]:
        """What commands take, by the command's name."""
        generation = self.engine_thread.generation
        return {
            "theme": lambda: sorted(self.app.available_themes),
            "persona": persona_names,
            "help": topics,
            "set": lambda: [*generation.names, "keep", "reset"] if generation is not None else [],
        }

    async def _offer_paths(self, typed: str, looking: Future[list[Completion]]) -> None:
        found = await wrap_future(looking)
        if self.prompt.typed == typed:
            self.prompt.offer(found)

    async def _show_files(self, names: list[str]) -> None:
        """Say which files the typed names lead to, a moment later."""
        if names:
            files = await wrap_future(in_background(partial(described, names), "files"))
        else:
            files = ""
        if self._named_files == names:
            self.prompt.show_files(files)

    def load_history(self) -> None:
        """Bring back what was sent in earlier starts."""
        if self.settings.prompt_history == "on":
            self.prompt.past.add_older(read_history(paths.history_file()))

    def _keep_in_history(self, draft: Draft) -> None:
        """Keep what was sent; say so the first time that fails."""
        if self.settings.prompt_history == "on":
            trouble = append_history(paths.history_file(), draft)
        else:
            trouble = None
        if trouble is not None and not self._has_told_history:
            self._has_told_history = True
            self.note(trouble, is_error=True)

    def keep_unsent(self) -> str:
        """Keep for the next start what no one has taken yet, a draft put aside and what is here; ""
        or a line on it."""
        # What waits for its turn is in the conversation's log, where that is saved.
        prompt = self.prompt
        if self.chat_session.journal.saves:
            queued = []
        else:
            queued = self.chat_session.queued_texts
        waiting = [prompt.past.find(text) or Draft(text) for text in queued]
        drafts = [
            *waiting,
            *prompt.unheeded,
            self.draft_aside if self.is_editing else Draft(),
            prompt.draft,
        ]
        drafts = [draft for draft in drafts if draft.text.strip()]
        if not drafts:
            return ""
        trouble = save_unsent(drafts)
        kept = "what was not sent is there again at the next start"
        if trouble:
            return f"not sent, and not saved: {trouble}"
        return kept

    def bring_back_unsent(self) -> str:
        """Put what an earlier run kept back: the newest into the prompt; returns a line that says
        so, or ""."""
        drafts = take_unsent()
        said = []
        if drafts and not self.prompt.text:
            self.prompt.show_draft(drafts.pop())
            said.append("it is in the prompt again")
        for draft in drafts:
            self.prompt.past.add(draft)
        if drafts:
            said.append(
                f"{self.keymap.first_key('prompt.older') or 'Up'} recalls {len(drafts)} more"
            )
        if said:
            return f"not sent when the program ended unexpectedly: {'; '.join(said)}"
        return ""

    # ---- the draft: estimate and reading ahead

    def note_model(self) -> None:
        """Another model is there, or none."""
        self._forget_count()
        self.estimator.forget_model()

    def _forget_count(self) -> None:
        self._counted_text = self._prepared_text = ""
        self._wake()

    def note_count(self, event: PromptCounted) -> None:
        """The engine has counted, and may have read ahead; of files alone, their line says what the
        edge does."""
        self._counted_text = event.text
        self.estimator.learn_count(event.text, event.tokens, event.ready_tokens)
        self.estimator.learn_read(event.read_tokens, event.read_s)
        self._show_estimate(self._next_text)
        if event.text == self._estimated:
            self._say_count(event.tokens, "")

    @property
    def _next_text(self) -> str:
        """The next message as it would be sent now; "" for commands, and for an edit of an earlier
        one."""
        if self.is_editing:
            text = ""
        else:
            text = self.prompt.draft.text.strip()
        if text.startswith("/"):
            return ""
        return text

    def _wake(self) -> None:
        self._quiet_ticks = 0
        if self._tick_timer is None:
            self._tick_timer = call_once(self, TICK_S, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        text = self._next_text
        if text == self._seen_text:
            self._quiet_ticks = self._quiet_ticks + 1
        else:
            self._quiet_ticks = 0
        self._seen_text = text
        self._show_estimate(text)
        is_done = self._use_engine(text)
        if text and (self._quiet_ticks < QUIET_TICKS or not is_done):
            self._tick_timer = call_once(self, TICK_S, self._tick)

    def _use_engine(self, text: str) -> bool:
        """Ask the engine for what is worth knowing or reading now; False when it should be asked
        again."""
        if self.chat_session.is_busy or self.chat_session.model is None:
            return True
        if text:
            documents = self.prompt.draft.documents
        else:
            documents = ""
        if (
            documents
            and not self._prepared_text.startswith(documents)
            and may_read_ahead(self.settings)
        ):
            is_sent = self.chat_session.read_ahead(documents, is_read=True, is_settled=True)
            if is_sent:
                self._prepared_text = documents
            return is_sent and len(text) > MAX_CHARS
        if len(text) > MAX_CHARS:
            return True
        is_quiet = self._quiet_ticks >= QUIET_TICKS
        if text != self._prepared_text and (
            not text or (is_quiet and may_read_ahead(self.settings))
        ):
            is_sent = self.chat_session.read_ahead(text, is_read=bool(text))
            if is_sent:
                self._prepared_text = text
            return is_sent
        return (
            not text
            or text == self._counted_text
            or self.chat_session.read_ahead(text, is_read=False)
        )

    def _show_estimate(self, text: str) -> None:
        is_known = bool(text) and self.chat_session.model is not None
        self.prompt.show_estimate(self.estimator.line(text) if is_known else "")

    # ---- the user's editor

    def action_external_editor(self) -> None:
        """Write the message in the user's editor, while replies go on."""
        # Not awaited here: what a reply brings meanwhile is taken in and saved, and signals are
        # heard.
        if self._editor is None or self._editor.is_finished:
            self._editor = self.run_worker(self._use_editor())

    async def _use_editor(self) -> None:
        from textual.app import SuspendNotSupported

        from app.tui.chat.external_editor import edit_text

        draft = self.prompt.draft
        try:
            with self.app.suspend(), self.app.batch_update():  # nothing is drawn into the editor
                edited = await edit_text(draft.text, os.environ)
            if edited != draft.text:
                self.prompt.show_draft(draft.refold(edited))
        except SuspendNotSupported:
            self.note("this terminal cannot be lent to an editor", is_error=True)
        except Refusal as refusal:
            self.note(str(refusal), is_error=True)

    # ---- files that a command or the list names

    def action_read(self, wanted: str) -> None:
        """Attach files, folders and patterns to the next message."""
        self.attach(*split_wanted(wanted))

    def attach(self, *names: str) -> None:
        """Begin to read files, folders and patterns."""
        self._begin(self._read(names))

    def _attach_at_once(self, draft: Draft) -> bool:
        """Begin to read files if that is what was sent: a message that is sent next waits for
        them."""
        word, argument = split_command(draft.text.strip()) or ("", "")
        if find_command(word) is not ACTIONS["chat.read"] or not argument or self.is_editing_reply:
            return False
        self._keep_in_history(draft)
        self.action_read(argument)
        return True

    async def _read(self, names: Sequence[str]) -> None:
        reading = await self._read_files(names)
        documents = self._tell(reading)
        if reading.documents:
            self._bring(documents)

    async def _read_files(self, names: Sequence[str], only_existing: bool = False) -> ReadDocuments:
        """Read files in the background and show how far it is."""
        reading = _Reading()
        read = partial(read_documents, names, only_existing, reading.follow)
        self._readings = (*self._readings, reading)
        timer = self.set_interval(_PROGRESS_S, partial(self._show_reading, reading))
        try:
            result: ReadDocuments = await wrap_future(in_background(read, "documents"))
        finally:
            timer.stop()
            self._readings = tuple(other for other in self._readings if other is not reading)
        return result

    def _show_reading(self, reading: _Reading) -> None:
        if reading.progress is not None:
            key = self.keymap.first_key("chat.stop")
            if key:
                stop = f" · {key} stops"
            else:
                stop = ""
            self.hint_for(2 * _PROGRESS_S, f"{reading.progress.line}{stop}")

    def stop_reading(self) -> bool:
        """Stop the reading of files, and keep what is read; return False if none are being read."""
        for reading in self._readings:
            reading.is_stopped = True
        return bool(self._readings)

    def bring(self, document: Document) -> None:
        """Put a document that was read before at the beginning of the message."""
        self._documents = ()
        documents = self._sized(ReadDocuments((document,)))
        if not fit(documents, self._n_ctx):
            self.note(announcement(documents, self._n_ctx, 0.0))
        self._bring(documents)

    def _bring(self, documents: tuple[Document, ...]) -> None:
        if not fit(documents, self._n_ctx):
            self._documents = documents
            self._passages_in = None
            return
        self._documents = ()
        files = self._new_of(
            for_message(documents, "", self._n_ctx, self.chat_session.conversation.user_text),
            documents,
        )
        message = next((one for one in self._held if not _is_command(one.draft)), None)
        if message is None and files:
            has_others = bool(self.prompt.draft.documents)
            self.prompt.attach(files)
            if not has_others:
                self._estimated = self.prompt.draft.documents
                self.estimator.suppose(self._estimated, n_tokens(documents))
        elif message is not None:
            self._complete(message, files)

    def _tell(self, reading: ReadDocuments) -> tuple[Document, ...]:
        """Say what was read; return it with what stays from before."""
        for trouble in reading.troubles:
            self.note(trouble, is_error=True)
        self._told = None
        self._estimated = ""
        documents = self._sized(reading)
        is_worth_it = n_tokens(documents) >= _WORTH_A_LINE_TOKENS or not fit(documents, self._n_ctx)
        if reading.documents and is_worth_it:
            tps = self.estimator.prefill_tps or self.engine_thread.status.usual_prefill_tps
            told = self.note(announcement(documents, self._n_ctx, tps))
            if fit(documents, self._n_ctx):
                self._told = told
            else:
                self._told = None
            self._told_of = documents
        return documents

    def note_reply(self, event: GenerationFinished) -> None:
        """A message was read: the line on files that were sent before they were counted alone says
        how long it was."""
        asked = self.chat_session.conversation.user_text
        starts = self.engine_thread.status.turn_starts
        if (
            self._told is not None
            and starts
            and all(one.in_message.strip() in asked for one in self._told_of)
        ):
            n_tokens = event.figures.prompt_tokens + event.figures.reused_tokens - starts[-1]
            self._say_count(n_tokens, " with the question")

    def _say_count(self, n_tokens: int, of_what: str) -> None:
        if self._told is not None:
            name = self._told.text.rpartition(": about ")[0]
            self._told.say(f"{name}: {figures.count(n_tokens)} tokens{of_what}")
        self._told = None
        self._estimated = ""

    def _sized(self, reading: ReadDocuments) -> tuple[Document, ...]:
        """Return what was read with what stays from before, in the tokens that the open model makes
        of it."""
        model = self.chat_session.model
        return reading.with_earlier(self._earlier, model.tokens_ratio if model is not None else 1.0)

    # ---- files of what is sent

    def _holds(self, message: PromptSubmitted) -> bool:
        """Whether a message has to wait: for files, or for the engine's start.

        It is sent when they are here.
        """
        if self._n_awaited:
            self._held = (*self._held, message)
            return True
        if message is self._refused or _is_command(message.draft) or self.is_editing_reply:
            return False
        if message is self._ready:
            return self._asks_first(message)
        names = message.draft.referred
        if not names and not self._earlier:
            return self._asks_first(message)
        self._hold(message, self._find_files(message, names))
        return True

    def _asks_first(self, message: PromptSubmitted) -> bool:
        """Whether the user is asked before the files of a message go to a server; once for a
        conversation."""
        if self.chat_session.model is not None:
            host = self.chat_session.model.server
        else:
            host = ""
        if (
            not host
            or not message.draft.files_line
            or self._sends_files_in is self.chat_session.conversation
        ):
            return False
        self._hold(message, self._ask_about_files(message, host))
        return True

    def _hold(self, message: PromptSubmitted, work: Awaitable[None]) -> None:
        self._held = (*self._held, message)
        self._begin(work)

    async def _ask_about_files(self, message: PromptSubmitted, host: str) -> None:
        files = message.draft.files_line
        question = make_screen(
            "question", files, host, self.keymap, self.engine_thread.now_s, kind="SendFilesScreen"
        )
        if await self.app.push_screen_wait(question):
            self._sends_files_in = self.chat_session.conversation
            self._ready = message
        else:
            self._refused = message
            self.note(f"not sent: {files} stays here")

    async def go_on_with_held(self) -> None:
        """Something that was waited for is here."""
        self._n_awaited -= 1
        if not self._n_awaited:
            held = self._held
            self._held = ()
            for message in held:
                await self.send(message)

    async def _find_files(self, message: PromptSubmitted, names: Sequence[str]) -> None:
        """Read the files that a message names, and choose what of the documents goes with it."""
        self._ready = message
        reading = await self._read_files(names, only_existing=True)
        documents = self._tell(reading)
        self._documents = ()
        if not documents:
            return
        shown = message.draft.shown
        conversation = self.chat_session.conversation
        question = shown[files_end(shown, message.draft.folds) :]
        similarities = self.shelf.meaning.similarities
        choose = partial(
            for_message, documents, question, self._n_ctx, conversation.user_text, similarities
        )
        files = await wrap_future(in_background(choose, "documents"))
        store = self.storage.store
        if files and store is not None and not fit(documents, self._n_ctx):
            await wrap_future(
                in_background(partial(save_long_documents, store, documents), "shelf")
            )
        if fit(documents, self._n_ctx):
            files = self._new_of(files, documents)
        else:
            self._documents = documents
            self._passages_in = conversation
        # what it names is read: given back, it is not read again
        message.draft = Draft(shown, message.draft.folds)
        self._complete(message, files)

    @property
    def _earlier(self) -> tuple[Document, ...]:
        """Documents that passages come from, unless that was in another conversation."""
        is_here = self._passages_in is None or self._passages_in is self.chat_session.conversation
        if is_here:
            return self._documents
        return ()

    def _new_of(self, files: list[FileText], documents: Sequence[Document]) -> list[FileText]:
        """Say which documents the conversation has already."""
        new = {file.name for file in files}
        for name in (one.name for one in documents if one.name not in new):
            self.note(f"{name} is in the conversation already, and is not sent again")
        return files

    def _complete(self, message: PromptSubmitted, files: Sequence[FileText]) -> None:
        message.draft = message.draft.with_files(files)
        self.prompt.past.add(message.draft)  # where it is found if the message is given back

    def _begin(self, work: Awaitable[None]) -> None:
        self._n_awaited += 1
        self.run_worker(self._see_through(work), group="documents")

    async def _see_through(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            # in the screen's turn, as if it had been sent now
            self.call_later(self.go_on_with_held)

    @property
    def _n_ctx(self) -> int:
        if self.chat_session.model is not None:
            return self.chat_session.model.n_ctx
        return 0


def _is_command(draft: Draft) -> bool:
    text = draft.shown.strip()
    return text == "/" or split_command(text) is not None
