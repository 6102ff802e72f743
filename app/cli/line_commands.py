"""The slash commands of the line mode: those of the table of actions that need no screen."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial

from app.cli.line_dialogue import Dialogue
from app.cli.reading import read_with_progress
from app.conversations.branches import delete_branch, show_branch
from app.conversations.conversation import Conversation
from app.conversations.list_rows import moment_text
from app.conversations.locks import StoreError
from app.documents.passages import announcement, fit, for_message
from app.documents.read import Document, described, referred, split_wanted
from app.forms.answer_form import SCHEMA, read_form_file
from app.models.library.find_by_name import named_model
from app.models.library.report_card import as_text, report_of_chat, write_card
from app.program import clipboard
from app.program.manual import lay_out, page
from app.program.refusals import Refusal, say
from app.program.settings import AUTO, load_settings
from app.session import commands
from app.session.reply_options import THINK_USAGE as USAGE_OF_THINK
from app.session.reply_options import describe_thinking
from app.session.system_commands import reply_about_system
from app.text.clean_text import clean_line, clean_text
from app.tui import actions
from app.tui.actions import Action, advice_on, find_command, nearest_name, split_command
from app.tui.chat.draft import Draft
from app.tui.markdown.code_blocks import text_to_copy

MOST_LISTED = 20
_COLUMNS = 100


class LineCommands:
    """Carries commands out: an action of the table is possible here where a method has its name.

    Attributes:
        documents: those that go with the next message, whole, or with all that follow in passages.
    """

    def __init__(self, dialogue: Dialogue, agrees: Callable[[str], bool] | None = None) -> None:
        self._dialogue = dialogue
        self._headless = dialogue.headless
        self._agrees = agrees
        self._agreed_in: Conversation | None = None
        """The conversation whose files may go to a server."""
        self.documents: tuple[Document, ...] = ()
        self._asked_in: Conversation | None = None
        """The conversation that has passages of the documents; None before the first."""
        self._edited: int | None = None
        """The message of the conversation whose place the next line takes."""

    # ---- lines

    def take_line(self, line: str) -> None:
        """Carry out a command, or send a message."""
        if self._edited is not None and not line.startswith("/"):
            self._take_edit(line)
        elif line.startswith("/"):
            self._edited = None
            self._obey(line)
        elif line.strip():
            # Whether a line was typed or pasted is not known here, and one that comes through a
            # pipe is no reference.
            if self._agrees is not None:
                names = described(referred(line))
            else:
                names = ""
            if names and self._agrees is not None and self._agrees(f"attach {names}?"):
                self._attach(referred(line), only_existing=True)
            if self._may_send():
                message = self._with_files(line)
                folded = message.folded_text if message.folds else ""
                self._dialogue.turn(lambda: self._headless.ask(message.text, folded=folded))

    def _may_send(self) -> bool:
        """Whether the files that wait may go where the answer is computed; a server's user is
        asked, once."""
        model = self._headless.chat_session.model
        conversation = self._headless.chat_session.conversation
        if (
            model is None
            or not model.server
            or not self._earlier
            or self._agreed_in is conversation
        ):
            return True
        names = clean_line(", ".join(one.name for one in self._earlier), 200)
        if self._agrees is None:
            say(
                f"not sent: no one can be asked whether {names} may go to {model.server} "
                "(jalopy run takes piped text)"
            )
        elif self._agrees(f"send {names} to {model.server}?"):
            self._agreed_in = conversation
            return True
        else:
            say(f"not sent: {names} stays here")
        self.documents = ()
        return False

    def _with_files(self, line: str) -> Draft:
        """Put what goes of the documents before a message; those that do not fit stay for the next
        one."""
        conversation = self._headless.chat_session.conversation
        documents = self._earlier
        if fit(documents, self._n_ctx):
            self.documents = ()
        else:
            self.documents = documents
        self._asked_in = conversation
        if documents:
            files = for_message(documents, line, self._n_ctx, conversation.user_text)
        else:
            files = []
        return Draft(line).with_files(files)

    @property
    def _earlier(self) -> tuple[Document, ...]:
        """Documents that were not sent yet, or that passages come from in this conversation."""
        is_here = (
            self._asked_in is None or self._asked_in is self._headless.chat_session.conversation
        )
        if is_here:
            return self.documents
        return ()

    def _obey(self, line: str) -> None:
        word, argument = split_command(line) or (line[1:].strip().partition(" ")[0], "")
        action = find_command(word)
        if action is None or not is_possible(action):
            name = clean_line(f"/{word}", 40)
            reason = "needs the screen" if action else "is not a command"
            hint = f"{_advice(word, action)}; a leading space sends it as text"
            say(f"{name} {reason}, nothing was sent ({hint})")
        elif action.needs_argument and not argument:
            say(action.usage)
        elif argument and not action.argument:
            say(f"/{action.command} takes no argument.")
        else:
            carry_out: Callable[..., None] = getattr(self, action.name)
            try:
                carry_out(*([argument] if action.argument else []))
            except Refusal as refusal:
                say(str(refusal))

    # ---- conversations

    def new(self) -> None:
        """Start a new conversation."""
        self._dialogue.begin_next("new conversation")

    def private(self) -> None:
        """Start a conversation of which nothing is saved."""
        self._dialogue.begin_next(commands.PRIVATE_LINE, is_private=True)

    def system(self, text: str = "") -> None:
        """Show the system prompt, replace it, or remember it for the model."""
        headless = self._headless
        reply = reply_about_system(headless.engine_thread, headless.chat_session, text)
        if reply:
            say_text(reply)
            return
        system = commands.new_system(text)
        self._dialogue.say_all(self._headless.change_conversation(commands.replace_system(system)))
        say(commands.system_line(system))

    def persona(self, wanted: str = "") -> None:
        """List the personas, begin again with one, or keep the present choice as one."""
        chosen = commands.choose_among_personas(self._headless.chat_session, wanted)
        if chosen.persona is None:
            say(chosen.line)
        else:
            self._dialogue.begin(chosen.persona.system or None, chosen.sampling, wanted)
            say(
                f"new conversation with persona {wanted}{f': {chosen.line}' if chosen.line else ''}"
            )

    def rename(self, title: str) -> None:
        """Give the conversation a title."""
        say(commands.rename(self._headless.chat_session, title))

    def conversations(self) -> None:
        """List the conversations used last."""
        store = self._headless.store
        if store is None:
            raise Refusal("conversations are not saved: save_conversations in your settings is off")
        try:
            hits = store.entries()
        except StoreError as error:
            raise Refusal(f"the saved conversations cannot be used: {error}") from None
        for hit in hits[:MOST_LISTED]:
            if hit.id == self._headless.chat_session.journal.id:
                mark = "*"
            else:
                mark = " "
            title = hit.title or "(empty)"
            say(f"{mark}{int(hit.id):>5}  {moment_text(hit.changed):<16}  {title}")
        say(
            f"{len(hits)} saved; jalopy sessions searches in them, "
            "jalopy run --session NUMBER goes on with one"
        )

    def context(self) -> None:
        """Show what fills the context."""
        say_text(commands.context_text(self._headless.engine_thread, self._headless.chat_session))

    def compact(self, argument: str = "") -> None:
        """Let the model summarize the oldest turns, show its summary, or remove it."""
        conversation = self._headless.chat_session.conversation
        if commands.is_compact_show(argument):
            say_text(commands.summary_shown(conversation))
        elif commands.is_compact_undo(argument):
            self._dialogue.say_all(self._headless.remove_summary())
            say(commands.summary_removed_line(conversation))
        else:
            self._dialogue.turn(self._headless.compact)

    def pin(self) -> None:
        """Pin the conversation to the top of the list, or unpin it."""
        say(commands.pin(self._headless.chat_session))

    def tag(self, argument: str = "") -> None:
        """Show the tags of the conversation, or add or remove one."""
        say(commands.tag(self._headless.chat_session, argument))

    def save(self, wanted: str = "") -> None:
        """Save the conversation as a file."""
        say(commands.export(self._headless.chat_session, wanted))

    # ---- turns

    def regenerate(self, wanted: str = "") -> None:
        """Answer the last message again."""
        if commands.n_answers(wanted) != 1:
            raise Refusal(
                "answers next to each other need the chat on the screen; here /regen writes one"
            )
        commands.check_regenerable(self._headless.chat_session.conversation, 1)
        self._dialogue.turn(self._headless.regenerate)

    def branch(self, argument: str = "") -> None:
        """Show another branch of the conversation, or delete the shown one."""
        chat_session = self._headless.chat_session
        conversation = chat_session.conversation
        choice = commands.chosen_branch(conversation, argument)
        change = partial(show_branch, index=choice.index, number=choice.number)
        if choice.is_deleted:
            question = commands.delete_branch_question(conversation, choice.index)
            if self._agrees is None or not self._agrees(question):
                raise Refusal("not deleted: a yes at a terminal deletes it")
            change = partial(delete_branch, index=choice.index)
        self._dialogue.say_all(self._headless.change_conversation(change))
        say(commands.branch_line(conversation, choice.index))
        say_text(conversation.messages[choice.index].text)

    def continue_reply(self) -> None:
        """Go on with an answer that was stopped."""
        self._dialogue.turn(self._headless.continue_reply)

    def edit(self, argument: str = "") -> None:
        """Let the next line take the place of a message."""
        conversation = self._headless.chat_session.conversation
        index = commands.message_to_edit(conversation, argument)
        commands.check_editable(conversation, index)
        self._edited = index
        say_text(conversation.messages[index].editable_text)
        if index % 2:
            what = "the answer goes on from the next line"
        else:
            what = "the next line is asked in its place"
        say(f"{commands.edit_title(conversation, index)}: {what}; an empty line keeps everything")

    def _take_edit(self, line: str) -> None:
        index = self._edited
        self._edited = None
        assert index is not None
        if not line.strip():
            say("everything stays as it was")
        elif index % 2:
            self._dialogue.turn(lambda: self._headless.edit_reply(index // 2, clean_text(line)))
        else:
            self._dialogue.turn(lambda: self._headless.edit(index // 2, clean_text(line)))

    def read(self, wanted: str) -> None:
        """Attach files and folders to the next message; they are read while its line is typed."""
        self._attach(split_wanted(wanted))
        if self.documents and fit(self.documents, self._n_ctx):
            self._headless.read_ahead(" ".join(one.in_message for one in self.documents))

    def _attach(self, names: Sequence[str], only_existing: bool = False) -> None:
        reading = read_with_progress(names, only_existing)
        for trouble in reading.troubles:
            say(trouble)
        if reading.documents:
            self.documents = reading.with_earlier(self._earlier, self._tokens_ratio)
            self._asked_in = None
            tps = self._headless.engine_thread.status.usual_prefill_tps
            say(f"with the next message: {announcement(self.documents, self._n_ctx, tps)}")

    @property
    def _n_ctx(self) -> int:
        model = self._headless.chat_session.model
        if model is not None:
            return model.n_ctx
        return 0

    @property
    def _tokens_ratio(self) -> float:
        model = self._headless.chat_session.model
        if model is not None:
            return model.tokens_ratio
        return 1.0

    # ---- answers

    def thinking(self, wanted: str = "") -> None:
        """Have the model think more or less; without a word, show what it thought before the last
        answer."""
        if wanted:
            say(commands.choose_thinking(self._headless.chat_session, wanted))
            return
        reply = self._headless.chat_session.conversation.last_reply
        if reply is None or reply.thinking is None:
            now = describe_thinking(self._headless.chat_session.request_options.thinking or AUTO)
            raise Refusal(f"there is no thinking in the last reply; {now} ({USAGE_OF_THINK})")
        say_text(reply.thinking.text.strip())

    def schema(self, wanted: str = "") -> None:
        """Have answers follow a JSON schema, or none."""
        chat_session = self._headless.chat_session
        if not commands.is_form_file(wanted):
            say(commands.show_or_remove_form(chat_session, wanted))
            return

        from app.forms.constraint import check_form

        form = read_form_file(SCHEMA, wanted.strip())
        unenforced = check_form(form)
        chat_session.change_options(form=form)
        say(commands.form_line(form, unenforced))

    def tools(self, wanted: str = "") -> None:
        """List the servers of tools, or turn them on or off."""
        say_text(commands.choose_tools(self._headless.engine_thread, wanted))

    def copy(self, what: str = "") -> None:
        """Copy the last answer, one of its code blocks, or its thinking."""
        found = text_to_copy(self._headless.chat_session.conversation.last_reply, what)
        if not found.text:
            raise Refusal("there is no text to copy")
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        to_file = found.to_file or not (clipboard.has_desktop(os.environ) or is_terminal)
        route = asyncio.run(clipboard.copy(found.text, _send_to_terminal, os.environ, to_file))
        say(f"{found.name}: {route}" if found.name else route)

    # ---- the model

    def model(self, wanted: str) -> None:
        """Open another model; the conversation goes on with it."""
        self._dialogue.switch_model(named_model(wanted, load_settings().model_directories))

    def set(self, wanted: str = "") -> None:
        """Show generation parameters, or use another value from the next message on."""
        say(
            commands.choose_sampling(
                self._headless.engine_thread, self._headless.chat_session, wanted
            )
        )

    def lora(self, wanted: str = "") -> None:
        """Show the adapters that change the model, or use others."""
        chosen = commands.requested_adapters(self._headless.chat_session, wanted)
        if isinstance(chosen, str):
            say(chosen)
            return
        for event in self._headless.use_adapters(chosen):
            self._dialogue.say_event(event)

    def threads(self, wanted: str = "") -> None:
        """Show or set the threads."""
        chosen = commands.requested_threads(
            self._headless.engine_thread,
            self._headless.chat_session,
            wanted,
            "jalopy tune MODEL finds the best",
        )
        if isinstance(chosen, str):
            say(chosen)
            return
        for event in self._headless.request_threads(chosen):
            self._dialogue.say_event(event)

    def report(self, wanted: str = "") -> None:
        """Show a card with machine, model and speeds, or write it into a file."""
        card = report_of_chat(self._headless.engine_thread, self._headless.chat_session)
        if wanted:
            say(write_card(card, wanted))
        else:
            say_text(as_text(card))

    # ---- the program

    def help(self, topic: str = "") -> None:
        """List what is possible here, or show what the manual says on a topic."""
        if topic:
            columns = shutil.get_terminal_size().columns
            lines = [line.text for line in lay_out(page(topic), columns)]
        else:
            lines = [f"{f'/{one.command} {one.argument}':<36} {one.title}" for one in possible()]
        for line in lines:
            say(line)

    def quit(self) -> None:
        """Leave."""
        self._dialogue.has_left = True


def is_possible(action: Action) -> bool:
    """Whether an action of the table can be done without a screen."""
    return (
        bool(action.command)
        and not action.name.startswith("_")
        and action.name in vars(LineCommands)
    )


def possible() -> list[Action]:
    """Return the commands of the line mode, in the table's order."""
    return [action for action in actions.commands() if is_possible(action)]


def _advice(word: str, action: Action | None) -> str:
    """Return what to type instead of a command that is not possible here."""
    if action is not None:
        return "/help lists what this mode has"
    nearest = nearest_name(word, [name for other in possible() for name in other.words])
    if advice_on(word):
        return advice_on(word)
    if nearest:
        return f"nearest: /{nearest}"
    return "/help lists them"


def say_text(text: str) -> None:
    """Write a text of several lines to stderr."""
    for line in text.splitlines():
        for part in textwrap.wrap(line, _COLUMNS) or [""]:
            say(part)


def _send_to_terminal(text: str) -> None:
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    sys.stderr.write(f"\x1b]52;c;{encoded}\a")
    sys.stderr.flush()
