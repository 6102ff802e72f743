"""The composer: the prompt, the messages and commands sent from it, and the queue of messages."""

from __future__ import annotations

import os
from asyncio import Event, Lock, wrap_future
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import TextArea
from textual.worker import Worker

from app.conversations.conversation import can_be_saved
from app.documents.read import Document, described, split_wanted
from app.program import paths
from app.program.background import in_background
from app.program.manual import topics
from app.program.personas import persona_names
from app.program.prompts import load_prompt, prompt_names, prompts_line
from app.program.refusals import Refusal
from app.program.samplers import SAMPLERS
from app.session.chat_session import MAX_QUEUED, Admission
from app.session.events import DraftCounted, GenerationFinished
from app.text.clean_text import clean_text
from app.tui.actions import (
    ACTIONS,
    SHELL_SIGN,
    Action,
    advice_on,
    find_command,
    nearest_command,
    shell_command_of,
    split_command,
)
from app.tui.chat.attachments import Attachments
from app.tui.chat.completing import Completion, Names, complete_command, complete_name
from app.tui.chat.core import HINT_S, ChatCore, TurnViews
from app.tui.chat.draft import Draft, draft_of
from app.tui.chat.draft_cost import DraftCost, PromptEstimator
from app.tui.chat.draft_pictures import DraftPictures, clipboard_document
from app.tui.chat.editing import MessageEditing
from app.tui.chat.history import append_history, read_history
from app.tui.chat.messages import PromptSubmitted, TakeBackRequested
from app.tui.chat.model_names import ModelNames
from app.tui.chat.shell_commands import ShellCommands
from app.tui.chat.unsent_drafts import DraftSaver, UnsentDrafts
from app.tui.textual_hacks import call_once
from app.tui.widgets.prompt import Suggestions

DRAFT_PERIOD_S = 2.0
"""Seconds from a change of the draft to its saving; a kill loses no more."""
SENT_DRAFT_PERIOD_S = 0.2
"""The same for a draft that was sent or deleted: a kill brings it back."""


class Composer(Vertical):
    """The prompt with its completions, and what is sent from it.

    Messages, commands and files are handled one after another, in the order in which they were
    sent: each waits until the files of those before it are read.

    Args:
        activity_line: the widget above the prompt that shows what the engine does.
        carry_out: carries out the action of a command with its argument.
    """

    def __init__(
        self,
        core: ChatCore,
        turn_views: TurnViews,
        editing: MessageEditing,
        activity_line: Widget,
        carry_out: Callable[[Action, str], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._core = core
        self._turn_views = turn_views
        self._editing = editing
        self._activity_line = activity_line
        self._carry_out = carry_out
        estimator = PromptEstimator()
        self.pictures = DraftPictures(core, lambda: estimator.prefill_tps)
        self.attachments = Attachments(core, estimator, self.pictures)
        self.shell = ShellCommands(core)
        self.draft_cost = DraftCost(core, estimator, self._next_text, self.pictures.encode_s)
        self.is_started = Event()
        """Set once the engine has started; nothing is sent before."""
        self._sending = Lock()
        self._n_waiting = 0
        """Messages that were sent, and wait until those before them are handled."""
        self._editor: Worker[None] | None = None
        self._models = ModelNames(lambda: core.settings.model_directories)
        self._named_files: Sequence[str] = ()
        """Names of files in the draft."""
        self._history_file = paths.history_file()
        self._has_said_history_trouble = False
        self._draft_saver = DraftSaver()
        self._draft_timer: Timer | None = None
        """Timer until the drafts are saved; None if they have not changed."""
        self.draft_conversation: str | None = ""
        """Id of the conversation in which the restored draft was typed.

        "" if there is no draft or no such conversation; None if the conversation is not known.
        """

    def compose(self) -> ComposeResult:
        """Yield the completions, the lines above the prompt, and the prompt."""
        core = self._core
        prompt = core.prompt
        suggestions = Suggestions(core.keymap.first_key("prompt.complete"), id="suggestions")
        prompt.waiting = core.transcript.waiting
        prompt.show_completions = suggestions.show
        prompt.carry_out_at_once = self._read_at_once
        prompt.attach_chosen = self.attach
        lines = (self._activity_line, self._editing.line, self.pictures.line)
        yield from (suggestions, *lines, prompt)

    # ---- sending, one after another

    @on(PromptSubmitted)
    def take_submitted(self, message: PromptSubmitted) -> None:
        """Send a message or carry out a command, after those before it."""
        self._core.edge.hint()  # that on blanks no longer holds
        if not _is_command(message.draft):
            self._n_waiting += 1
        self._run_in_order(partial(self._deliver, message.draft))

    def _run_in_order(self, work: Callable[[], Awaitable[None]]) -> None:
        run = partial(self._run_when_due, work)
        self.run_worker(run, group="sending")  # type: ignore[arg-type]  # as in run_last

    async def _run_when_due(self, work: Callable[[], Awaitable[None]]) -> None:
        async with self._sending:  # a lock serves first whoever came first
            await self.is_started.wait()
            await work()

    async def _deliver(self, draft: Draft) -> None:
        """Send a message with its files, or carry out a command."""
        shell_command = "" if self._editing.is_active else shell_command_of(draft.folded_text)
        if shell_command:
            self._add_to_history(draft)
            await self.shell.run(shell_command)
            self._core.prompt.submitted.popleft()
            return
        may_send = True
        if not _is_command(draft):
            self._n_waiting -= 1
            if not self._editing.is_of_reply:
                complete = await self.attachments.add_to(draft)
                may_send = complete is not None
                if complete is not None:
                    draft = complete
                    may_send = await self.attachments.may_upload(draft)
        if may_send:
            await self._send(draft)
        else:
            self._core.prompt.give_back(draft.text)
        self._core.edge.show_keys()
        if self._core.prompt.submitted:
            self._core.prompt.submitted.popleft()
        self._save_drafts_soon()

    async def _send(self, draft: Draft) -> None:
        core = self._core
        if not (can_be_saved(draft.text) and can_be_saved(draft.folded_text)):
            core.say("Not sent: the message is too long.")
            core.prompt.give_back(draft.text)
            return
        if self._editing.is_of_reply:
            if not self._editing.send(clean_text(draft.text)):
                core.prompt.give_back(draft.text)
            return

        text = draft.text.strip()
        command = ("", "") if text == "/" else split_command(text)
        self._add_to_history(draft)
        # A refused command stays in the history alone: the prompt is for the next words.
        if command is not None:
            await self._run_command(*command)
        elif not self._send_message(clean_text(text), draft):
            core.prompt.give_back(draft.text)

    def _send_message(self, text: str, draft: Draft) -> bool:
        core = self._core
        folded = clean_text(draft.folded_text.strip()) if draft.folds else ""
        if self._editing.is_active:
            return self._editing.send(text, folded)

        match core.chat_session.submit(text, folded):
            case Admission.SENT:
                self._turn_views.begin(core.transcript.add_user(text, folded))
                return True
            case Admission.QUEUED:
                view = core.transcript.add_user(text, folded)
                view.show_footer("queued · Up in an empty prompt takes it back")
                core.transcript.waiting.append(view)
                return True
            case Admission.NO_MODEL:
                core.say_no_model()
            case Admission.FULL:
                core.say(f"Queue full ({MAX_QUEUED} messages). Not sent.")
        return False

    async def _run_command(self, word: str, argument: str) -> None:
        action = find_command(word)
        if action is None:
            nearest = nearest_command(word) if word else "help"
            advice = advice_on(word) or "/help lists them"
            if nearest and not advice_on(word):
                advice = f"Did you mean /{nearest}? Up brings it back."
            self._core.say(f"Unknown command /{word}. {advice}", is_error=True)
        elif action.needs_argument and not argument:
            self._core.say(action.usage)
        elif argument and not action.argument:
            self._core.say(f"/{action.command} takes no argument.", is_error=True)
        else:
            await self._carry_out(action, argument)

    # ---- the queue of messages that wait for their turn

    def ask_next(self) -> None:
        """Send the oldest message of the queue if the engine is free."""
        if self._core.chat_session.send_next():
            view = self._core.transcript.waiting.popleft()
            view.show_footer("")
            self._turn_views.begin(view)
        self.draft_cost.end_turn()

    @on(TakeBackRequested)
    async def take_back_into_prompt(self) -> None:
        """Take the newest queued message back, if the prompt is still empty."""
        if not self._core.prompt.text:
            await self.action_take_back()

    async def action_take_back(self) -> None:
        """Take the newest queued message back into the prompt."""
        text = self._core.chat_session.take_back_queued()
        if text is None:
            self._core.say("No message is queued")
            return
        await self._core.transcript.waiting.pop().remove()
        self._core.prompt.give_back(text)

    def action_prompt(self, name: str = "") -> None:
        """List prompts, or put one into the message with its first blank selected."""
        core = self._core
        if not name:
            core.say(prompts_line())
            return
        with core.refusals_said():
            text = load_prompt(name)
            core.prompt.begin_with_blanks(text)
            if core.prompt.has_blanks:
                key = core.keymap.first_key("prompt.complete")
                core.edge.hint_for(HINT_S, f"type to fill the blank · {key} next blank")

    # ---- files

    def action_read(self, argument: str) -> None:
        """Attach files, folders and patterns to the next message."""
        self.attach(*split_wanted(argument))

    def attach(self, *names: str) -> None:
        """Begin to read files, folders and patterns for the next message."""
        self._run_in_order(partial(self._read, names))

    async def _read(self, names: Sequence[str]) -> None:
        await self.attachments.read(names, has_sent=self._n_waiting > 0)

    async def action_paste(self) -> None:
        """Attach the picture in the clipboard to the next message."""
        with self._core.refusals_said():
            picture = await wrap_future(in_background(clipboard_document, "clipboard"))
            self.attachments.attach_picture(picture, has_sent=self._n_waiting > 0)

    def attach_document(self, document: Document) -> None:
        """Attach a document that was read before to the next message."""
        self.attachments.attach_document(document, has_sent=self._n_waiting > 0)

    def _read_at_once(self, draft: Draft) -> bool:
        """Begin to read files if a draft is the command for it, so that the next message waits.

        Returns:
            Whether the draft is that command.
        """
        word, argument = split_command(draft.text.strip()) or ("", "")
        is_read = find_command(word) is ACTIONS["chat.read"]
        if not is_read or not argument or self._editing.is_of_reply:
            return False
        self._add_to_history(draft)
        self.action_read(argument)
        return True

    # ---- the draft

    @on(TextArea.Changed)
    def follow_draft(self) -> None:
        """Show completions of the draft and its cost; the engine stops reading documents."""
        prompt = self._core.prompt
        typed = prompt.typed
        prompt.offer(complete_command(typed, self._argument_names()) if typed else ())
        # Not exclusive: a worker that is cancelled before it begins never awaits its future.
        names_future = complete_name(typed, self._model_names) if typed else None
        if names_future is not None:
            self.run_worker(self._offer_names(typed, names_future), group="names")

        names = prompt.draft.referred
        if names != self._named_files:
            self._named_files = names
            self.run_worker(self._show_named_files(names), group="files")
        if prompt.draft.may_have_pictures or self.pictures.line.display:
            self.pictures.show()
        self.draft_cost.follow_draft()
        self._core.documents.pause()
        self._editing.follow_draft()
        self._save_drafts_soon()

    def _argument_names(self) -> dict[str, Names]:
        """Return, by command, functions that list its arguments."""
        return {
            "theme": lambda: sorted(self.app.available_themes),
            "persona": persona_names,
            "prompt": prompt_names,
            "help": topics,
            "set": lambda: [*SAMPLERS, "keep", "reset"],
        }

    def _model_names(self) -> list[str]:
        model = self._core.chat_session.model
        return self._models.others("" if model is None else str(model.path))

    async def _offer_names(self, typed: str, names_future: Future[list[Completion]]) -> None:
        completions = await wrap_future(names_future)
        if self._core.prompt.typed == typed:
            self._core.prompt.offer(completions)

    async def _show_named_files(self, names: list[str]) -> None:
        """Show the files that the names in the draft lead to."""
        files = ""
        if names:
            files = await wrap_future(in_background(partial(described, names), "files"))
        if self._named_files == names:
            self._core.prompt.show_files(files)
            await self.pictures.read_named(names)

    def _next_text(self) -> str:
        """Return the next message as it would be sent now; "" for a command or an edit."""
        if self._editing.is_active:
            return ""
        text = self._core.prompt.draft.text.strip()
        return "" if text.startswith(("/", SHELL_SIGN)) else text

    def take_count(self, event: DraftCounted) -> None:
        """Show the number of tokens that the engine has counted in the draft."""
        self.draft_cost.take_count(event)
        self.attachments.show_count(event)

    def end_turn(self, event: GenerationFinished) -> None:
        """Correct the line about the files that were sent with the message."""
        self.attachments.show_prompt_size(event)

    # ---- the user's editor

    def action_external_editor(self) -> None:
        """Write the message in the user's editor, while replies continue."""
        # Not awaited: meanwhile replies are shown and saved, and signals are handled.
        if self._editor is None or self._editor.is_finished:
            self._editor = self.run_worker(self._use_editor())

    async def _use_editor(self) -> None:
        from textual.app import SuspendNotSupported

        from app.tui.chat.external_editor import edit_text

        core = self._core
        draft = core.prompt.draft
        try:
            with self.app.suspend(), self.app.batch_update():  # nothing is drawn into the editor
                edited = await edit_text(draft.text, os.environ)
            if edited != draft.text:
                core.prompt.show_draft(draft.refold(edited))
        except SuspendNotSupported:
            core.say("this terminal cannot be lent to an editor", is_error=True)
        except Refusal as refusal:
            core.say(str(refusal), is_error=True)

    # ---- the history, and drafts across starts

    def load_history(self) -> None:
        """Load the messages that were sent in earlier starts."""
        if self._core.settings.prompt_history == "on":
            self._core.prompt.past.add_older(read_history(self._history_file))

    def _add_to_history(self, draft: Draft) -> None:
        """Write a draft to the history file; say so the first time that fails.

        What is typed in a private conversation is in the history until the program ends.
        """
        is_private = self._core.chat_session.journal.is_private
        if is_private or self._core.settings.prompt_history != "on":
            return
        trouble = append_history(self._history_file, draft)
        if trouble is not None and not self._has_said_history_trouble:
            self._has_said_history_trouble = True
            self._core.say(trouble, is_error=True)

    @property
    def can_clear(self) -> bool:
        """Whether the prompt has text, or an earlier message is edited there."""
        return bool(self._core.prompt.text.strip()) or self._editing.is_active

    def clear_into_history(self) -> str:
        """Empty the prompt, or stop editing a message; text that was typed goes to the history.

        Returns:
            What happened, for a hint.
        """
        prompt = self._core.prompt
        is_edit = self._editing.is_active
        is_typed = not is_edit or self._editing.has_changes
        draft = prompt.past.unsent(prompt.draft)
        if is_typed and draft.text.strip():
            prompt.past.add(draft)
            self._add_to_history(draft)
        if not self._editing.cancel():
            prompt.show_draft(Draft())
        parts = []
        if is_edit:
            parts.append("the edit is cancelled")
        if is_typed:
            parts.append("Up brings the text back")
        return " · ".join(parts)

    def _save_drafts_soon(self) -> None:
        """Save the drafts after a moment, a short one if there are none left."""
        delay_s = DRAFT_PERIOD_S
        if not self._core.prompt.text:
            delay_s = SENT_DRAFT_PERIOD_S
            if self._draft_timer is not None:
                self._draft_timer.stop()
                self._draft_timer = None
        if self._draft_timer is None:
            self._draft_timer = call_once(self._core.screen, delay_s, self._begin_saving_drafts)

    def _begin_saving_drafts(self) -> None:
        self._draft_timer = None
        if self._core.chat_session.journal.is_private:
            self._draft_saver.save(UnsentDrafts())
            return
        unsent = self._unsent()
        memory = paths.memory_directory()
        if self._core.storage.store is not None:
            self._draft_saver.save(unsent)
        elif memory is not None:
            # If conversations are not saved, a draft is on disk only once the program has ended.
            self._draft_saver.save(unsent, memory)
        elif not unsent.drafts:
            self._draft_saver.save(unsent)

    def _unsent(self) -> UnsentDrafts:
        prompt = self._core.prompt
        journal = self._core.chat_session.journal
        # A conversation that is saved has its queue in its log.
        queued_texts = [] if journal.saves else self._core.chat_session.queued_texts
        drafts = [prompt.past.find(text) or draft_of(text) for text in queued_texts]
        drafts += [draft for draft in prompt.submitted if not _is_command(draft)]
        if self._editing.is_active:
            drafts.append(self._editing.draft_aside)
        drafts.append(prompt.past.unsent(prompt.draft))
        return UnsentDrafts([draft for draft in drafts if draft.text.strip()], journal.id)

    def save_drafts(self, patience_s: float) -> str:
        """Save all drafts that were not sent for the next start.

        Args:
            patience_s: limit on the wait for the disk.

        Returns:
            A line for the user; "" if there are no drafts.
        """
        unsent = self._unsent()
        if self._core.chat_session.journal.is_private:
            unsent = UnsentDrafts()
        saving = self._draft_saver.save(unsent)
        wait([saving], patience_s)
        trouble = "the disk does not answer"
        if saving.done():
            trouble = saving.result()
        if not unsent.drafts:
            return ""
        if trouble:
            return f"not sent, and not saved: {trouble}"
        return "what was not sent is there again at the next start"

    def restore_drafts(self) -> str:
        """Put drafts that an earlier run saved into the prompt and the history.

        Returns:
            A line for the user; "" if there are no drafts.
        """
        prompt = self._core.prompt
        unsent = self._draft_saver.take()
        older = list(unsent.drafts)
        parts = []
        if older and not prompt.text:
            prompt.show_draft(older.pop())
            self.draft_conversation = unsent.conversation_id
            parts.append("it is in the prompt again")
        for draft in older:
            prompt.past.add(draft)
            self._add_to_history(draft)
        if older:
            key = self._core.keymap.first_key("prompt.older") or "Up"
            parts.append(f"{key} recalls {len(older)} more")
        if not parts:
            return ""
        return f"Not sent before Jalopy closed: {'; '.join(parts)}"


def _is_command(draft: Draft) -> bool:
    text = draft.folded_text.strip()
    if shell_command_of(draft.folded_text):
        return True
    return text == "/" or split_command(text) is not None
