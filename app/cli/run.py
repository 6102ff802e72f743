"""``jalopy run``: one prompt, one reply on stdout, everything else on stderr."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.options import ChatOptions
from app.backend.reply import Clock, ReplyMeter
from app.backend.status import EngineStatus
from app.cli.interrupts import interrupt_stops
from app.cli.line_dialogue import lines_about
from app.cli.output import ProgressLine, ReplyOutput, follow_opening, write_reply
from app.cli.questions import CallQuestions, agrees, can_ask
from app.cli.reading import read_with_progress
from app.cli.standard_input import read_standard_input
from app.conversations.conversation import Ending
from app.conversations.journal import ConversationStorage, open_storage
from app.conversations.locks import IN_USE, NO_LOCKS, StoreError
from app.conversations.pictures import MOST_PICTURES, Picture, read_picture
from app.conversations.reply_lines import reply_footer
from app.conversations.store import MOST_TITLE_CHARS, LoadedConversation, Store
from app.documents.passages import announcement, fit, for_message
from app.documents.read import ReadDocuments, described, existing_name, referred
from app.forms.answer_form import GRAMMAR, REGEX, SCHEMA, AnswerForm, make_form, read_form_file
from app.models.library.known_models import real_model_line
from app.program import exit_codes, garbage
from app.program.bundled_model import is_starter
from app.program.refusals import Refusal, say
from app.program.remote_model import RemoteModel
from app.program.settings import Settings
from app.reply.starter_fence import is_declined
from app.session import events
from app.session.headless import SAVING_PATIENCE_S, HeadlessChat
from app.session.line_of import empty_reply_line
from app.session.request import date_to_name
from app.text.clean_text import clean_line
from app.text.figures import count, rate
from app.text.json_line import json_line
from app.text.record import record
from app.tui.chat.draft import Draft
from app.tui.chat_options import shell_options, tool_box

if TYPE_CHECKING:
    from engine import Model
    from engine.prompt.chat_prompt import ChatPrompt

_FORM_OPTIONS = {SCHEMA: "schema", GRAMMAR: "grammar", REGEX: "regex"}
"""Names of the options that give the reply a form, by type of form."""
_JSON_FIGURES = (
    "prompt_tokens",
    "tokens",
    "guessed_tokens",
    "prefill_tps",
    "decode_tps",
    "first_token_s",
    "finish_reason",
)
"""Figures of the reply in the output of --json."""


@record
class RunOptions:
    """Arguments of ``run`` that are not settings."""

    model: str | RemoteModel
    prompt: str | None = None
    """Text of -p; "-" for standard input alone."""
    words: Sequence[str] = ()
    """Words of the prompt on the command line."""
    files: Sequence[str] = ()
    """Files, folders and patterns to add to the prompt."""
    images: Sequence[str] = ()
    """Files of pictures that the prompt begins with."""
    raw: bool = False
    as_json: bool = False
    schema: str | None = None
    """File with a JSON schema that the reply follows."""
    grammar: str | None = None
    """File with a grammar in GBNF or Lark that the reply follows."""
    regex: str | None = None
    """Regular expression that the reply matches."""
    session: str | None = None
    """Title or number of the saved conversation to continue; None for none."""


def read_prompt(argument: str | None, words: Sequence[str] = ()) -> str:
    """Return the prompt of the command line, followed by piped text.

    Args:
        argument: text of -p; "-" for standard input alone, None if it is missing.
        words: words of the prompt on the command line.

    Raises:
        Refusal: there is no prompt, or there are two.
    """
    if argument is not None and words:
        raise Refusal("jalopy run: there are two prompts (use either -p or words, not both)")
    if argument == "-" or (argument is None and not words):
        if sys.stdin is None or (argument is None and sys.stdin.isatty()):
            raise Refusal(
                'jalopy run: there is no prompt (jalopy run MODEL "TEXT", or pipe in a text)'
            )
        return read_standard_input(is_needed=True)
    # Arguments that are not UTF-8 have lone surrogates, which tokenizers cannot encode.
    raw_bytes = (argument or " ".join(words)).encode("utf-8", "surrogateescape")
    prompt = raw_bytes.decode("utf-8", "replace")

    piped = ""
    if _is_piped():
        piped = read_standard_input(is_needed=False)
    if piped.strip():
        return f"{prompt}\n\n{piped}"
    return prompt


def _is_piped() -> bool:
    """Whether standard input is a pipe or a regular file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def run(options: RunOptions, settings: Settings, clock: Clock = time.monotonic) -> int:
    """Print the reply to one prompt; Ctrl-C stops the reply.

    Raises:
        EngineError: the model or the prompt cannot be used.
        OSError: stdout cannot be written.
    """
    if options.session is not None and not options.session.strip():
        raise Refusal(
            "jalopy run: --session is empty (give a title or a number, or leave --session out)"
        )
    if options.session and options.raw:
        raise Refusal("jalopy run: --raw and --session do not work together (leave one out)")
    prompt = read_prompt(options.prompt, options.words)
    if not prompt.strip() and not options.raw:
        raise Refusal(
            'jalopy run: the prompt is empty (jalopy run MODEL "TEXT", or pipe in a text)'
        )
    form = _answer_form(options)
    pictures = _read_pictures(options)
    documents = _read_files(options)
    progress = ProgressLine()
    if options.session:
        storage = open_storage(settings, is_named=True)
    else:
        storage = ConversationStorage()
    saving = SavingWatch(progress)

    def watch(status: EngineStatus) -> None:
        progress.show_status(status)
        saving.report(storage.journal.trouble)

    questions = CallQuestions()
    headless = HeadlessChat(
        _engine_options(options, _with_files(documents, prompt).text, settings, form, pictures),
        storage,
        settings.system_prompt,
        clock,
        watch,
        may_run=questions.may_run,
        today=partial(date_to_name, settings, is_chat=False),
    )
    questions.chat = headless
    this_run = _Run(headless, options, progress, settings, documents, pictures)
    try:
        code = this_run.answer(prompt)
    except BaseException as error:
        saving.end(headless.close(is_hurried=not isinstance(error, Exception)))
        if (
            this_run.new_id
            and headless.store is not None
            and headless.chat_session.conversation.is_empty
        ):
            with suppress(StoreError):  # an empty conversation does no harm
                headless.store.delete(this_run.new_id)
        raise
    if saving.end(headless.close()):
        return exit_codes.IO_ERROR
    return code


def _read_pictures(options: RunOptions) -> tuple[Picture, ...]:
    """Return the pictures of --image.

    Raises:
        Refusal: a file cannot be read, or the prompt is no message.
    """
    if not options.images:
        return ()
    if options.raw:
        raise Refusal("jalopy run: --image and --raw do not work together (leave one out)")
    if len(options.images) > MOST_PICTURES:
        raise Refusal(f"jalopy run: at most {MOST_PICTURES} pictures go into one prompt")
    try:
        return tuple(read_picture(name) for name in options.images)
    except Refusal as refusal:
        raise Refusal(f"jalopy run: {refusal}", refusal.exit_code) from None


def _read_files(options: RunOptions) -> ReadDocuments:
    """Return the files of --file, and those after @ signs in the prompt if the user agrees.

    A script may fill the prompt with any text, so nothing that it names is read unasked.

    Raises:
        Refusal: a file of --file cannot be read.
    """
    names = list(options.files)
    if not options.raw:
        names += _mentioned_files(options)
    if not names:
        return ReadDocuments(())
    reading = read_with_progress(names)
    if reading.is_stopped:
        raise Refusal("jalopy run: stopped while files were read", exit_codes.INTERRUPTED)
    if reading.troubles:
        raise Refusal(f"jalopy run: {reading.troubles[0]}", exit_codes.UNREADABLE)
    return reading


def _mentioned_files(options: RunOptions) -> list[str]:
    """Return the files after @ signs in the prompt of the command line that the user attaches."""
    typed_text = " ".join([options.prompt or "", *options.words])
    names = [existing_name(name) for name in referred(typed_text) if described([name])]
    if not names:
        return []
    if can_ask() and agrees(f"attach {described(names)}?"):
        return names
    files = " ".join(f"--file {shlex.quote(name)}" for name in names)
    say(f"jalopy run: not read: {described(names)} ({clean_line(files, 200)} reads it)")
    return []


def _with_files(reading: ReadDocuments, prompt: str, n_ctx: int = 0) -> Draft:
    """Return the prompt after the files, or after passages of them if they do not fit.

    Args:
        n_ctx: size of the context in tokens; 0 if it is not known yet.
    """
    if not reading.documents:
        return Draft(prompt)
    files = for_message(reading.documents, prompt, n_ctx)
    return Draft(prompt).with_files(files)


def _answer_form(options: RunOptions) -> AnswerForm | None:
    """Return the form of the reply; None for free text. Raises Refusal: it is invalid."""
    forms = [
        (form_type, name, value)
        for form_type, name in _FORM_OPTIONS.items()
        if (value := getattr(options, name)) is not None
    ]
    if len(forms) > 1:
        names = " and ".join(f"--{name}" for _, name, _ in forms)
        raise Refusal(f"jalopy run: {names} both set the form of the answer (use only one)")
    if not forms:
        return None
    from app.forms.constraint import check_form

    form_type, name, value = forms[0]
    try:
        if form_type == REGEX:
            form = make_form(form_type, value, f"--{name}")
        else:
            form = read_form_file(form_type, value, takes_pipe=True)
        for keyword in check_form(form):
            say(f"jalopy run: cannot be enforced: {keyword}")
    except Refusal as refusal:
        raise Refusal(f"jalopy run: {refusal}", refusal.exit_code) from None
    return form


def _engine_options(
    options: RunOptions,
    prompt: str,
    settings: Settings,
    form: AnswerForm | None,
    pictures: tuple[Picture, ...] = (),
) -> ChatOptions:
    tools = None
    if form is None and not options.raw:
        tools = tool_box(settings, can_ask())
    chat_options = shell_options(settings, bool(options.session), form, tools)
    if options.session or pictures or (tools is not None and tools.is_on):
        return chat_options

    # One reply of known length needs a small context only.
    size_context = partial(_size_context, prompt, options.raw, settings)
    return replace(chat_options, size_context=size_context, least_reply_tokens=1)


def _size_context(
    prompt: str, raw: bool, settings: Settings, model: Model, chat: ChatPrompt
) -> int | None:
    """Return the context in tokens for one reply; None if its length is not limited."""
    max_tokens = settings.sampling.max_tokens
    if not max_tokens:
        return None
    if raw:
        n_prompt = len(model.tokenizer.encode(prompt))
    else:
        chat.start(settings.system_prompt or None)
        n_prompt = len(chat.add_user(prompt))
    return min(n_prompt + max_tokens, model.config.context_length)


def statistics_line(meter: ReplyMeter, ending: Ending) -> str:
    """Return the figures of a reply: "5.1 tok/s · ... · read 840 prompt tokens at 39.0 tok/s"."""
    footer = reply_footer(meter.figures(), ending)
    if not meter.prompt_tokens:  # some servers do not report it
        return footer
    read = f"read {count(meter.read_tokens)} prompt tokens"
    if meter.prefill_tps:
        read += f" at {rate(meter.prefill_tps)} tok/s"
    return f"{footer} · {read}"


class _Run:
    """A call of ``jalopy run``: open the model, print the reply."""

    def __init__(
        self,
        headless: HeadlessChat,
        options: RunOptions,
        progress: ProgressLine,
        settings: Settings,
        reading: ReadDocuments,
        pictures: tuple[Picture, ...] = (),
    ) -> None:
        self._headless = headless
        self._reading = reading
        self._options = options
        self._progress = progress
        self._settings = settings
        self._pictures = pictures
        self.new_id = ""
        """Id of the conversation that this run starts; "" if it continues one."""

    def answer(self, prompt: str) -> int:
        """Open the model, print the reply and return the exit code."""
        model = self._open()
        output = None
        if not self._options.as_json:
            output = ReplyOutput()

        with interrupt_stops(self._headless.stop):
            message = self._with_files(prompt, model)
            if self._options.raw:
                reply_events = self._headless.complete(message.text)
            else:
                folded = message.folded_text if message.folds else ""
                reply_events = self._headless.ask(message.text, self._pictures, folded)
            last_event = write_reply(reply_events, output, self._progress, self._tell)
        if isinstance(last_event, events.PromptRefused):
            raise self._refusal(last_event)
        if isinstance(last_event, events.GenerationFailed):
            raise last_event.error or Refusal(f"jalopy run: {last_event.reason}")

        ending = Ending.STOPPED
        text = ""
        if isinstance(last_event, events.GenerationFinished):
            ending = last_event.ending
            text = last_event.raw
        conversation = self._headless.chat_session.conversation
        empty_line = empty_reply_line(conversation, "run it again")
        if empty_line and not self._options.raw:
            say(f"jalopy run: {empty_line}")
        meter = self._headless.engine_thread.status.meter
        if meter is not None:
            self._print_figures(meter, ending, text, model)
        if is_starter(model.path) and is_declined(text):
            advice = real_model_line(self._settings)
            if advice:
                say(advice)
        if ending is Ending.STOPPED:
            return exit_codes.INTERRUPTED
        return exit_codes.OK

    def _with_files(self, prompt: str, model: events.ModelLoaded) -> Draft:
        """Return the prompt with its files, and say which do not fit the context."""
        documents = self._reading.with_earlier((), model.tokens_ratio)
        if documents and not fit(documents, model.n_ctx):
            say(f"jalopy run: {announcement(documents, model.n_ctx, 0.0)}")
        return _with_files(replace(self._reading, documents=documents), prompt, model.n_ctx)

    def _print_figures(
        self, meter: ReplyMeter, ending: Ending, text: str, model: events.ModelLoaded
    ) -> None:
        if not self._options.as_json:
            say(statistics_line(meter, ending))
            return
        figures = {name: getattr(meter, name) for name in _JSON_FIGURES}
        print(json_line({"text": text, **figures, "model": model.full_name}), flush=True)

    def _open(self) -> events.ModelLoaded:
        # Nothing is lost before the reply begins, so Ctrl-C ends the program here.
        garbage.postpone()
        try:
            conversation = None
            if self._options.session:
                conversation = open_saved_session(self._options.session, self._headless)
            if conversation is None:
                self.new_id = self._headless.chat_session.journal.id
            model = self._options.model
            model_place = Path(model) if isinstance(model, str) else model
            opening = self._headless.open(model_place, conversation)
            loaded = follow_opening(
                self._headless, opening, self._progress, "jalopy run", self._tell
            )
        finally:
            garbage.settle()
        for line in loaded.notices:
            say(f"jalopy: {line}")
        if self._headless.chat_session.journal.is_unlocked:
            say(f"jalopy run: {NO_LOCKS}")
        return loaded

    def _tell(self, event: events.Event) -> None:
        for line in lines_about(event, self._headless):
            say(line)

    def _refusal(self, event: events.PromptRefused) -> Refusal:
        if self._options.session:
            need = f"the message needs {count(event.needed_tokens)} tokens with room for a reply"
        else:
            need = f"the prompt has {event.needed_tokens - 1} tokens"
        line = (
            f"jalopy run: {need}, but the context holds {count(event.n_ctx)} "
            "(shorten it, or try a larger --ctx)"
        )
        return Refusal(line, exit_codes.BAD_DATA)


class SavingWatch:
    """Reports while the reply is written that saving fails, so that the user can free the disk."""

    def __init__(self, progress: ProgressLine) -> None:
        self._progress = progress
        self._reported = ""

    def report(self, reason: str) -> None:
        """Print why saving fails, once for each reason; "" if it works."""
        if reason and reason != self._reported:
            self._progress.clear()
            say(f"jalopy run: conversation not saved: {reason}. Jalopy keeps trying.")
        self._reported = reason or self._reported

    def end(self, reason: str) -> bool:
        """Print the final state of saving; return whether it failed."""
        if reason:
            say(f"jalopy run: conversation not saved: {reason}")
        elif self._reported:
            say("jalopy run: the conversation is saved now")
        return bool(reason)


def open_saved_session(name: str, headless: HeadlessChat) -> LoadedConversation | None:
    """Open the conversation with this title or number; None if a new one with this title starts.

    Raises:
        Refusal: the conversation is in use or cannot be opened.
    """
    store = headless.store or Store()
    try:
        with store.alone():  # only one of several programs starts the conversation
            conversation_id = store.find(name)
            if conversation_id is None:
                chat_session = headless.chat_session  # reserve the title before the first message
                chat_session.journal.begin(
                    title=clean_line(" ".join(name.split()), MOST_TITLE_CHARS)
                )
                chat_session.journal.claim(chat_session.conversation, SAVING_PATIENCE_S)
                return None
    except StoreError as error:
        raise Refusal(f"jalopy run: {error}", exit_codes.IO_ERROR) from None
    opened = _open_saved(store, conversation_id, name)
    system = headless.chat_session.conversation.system
    if system and system != opened.saved.conversation.system:
        say("jalopy run: the conversation keeps its own system prompt")
    return opened


def _open_saved(store: Store, conversation_id: str, name: str) -> LoadedConversation:
    label = clean_line(name, 40)
    try:
        opened = store.open(conversation_id)
    except StoreError as error:
        raise Refusal(f"jalopy run: conversation {label}: {error}", exit_codes.IO_ERROR) from None
    if opened.open_conversation is None:
        advice = "fix that, or leave --session out"
        if opened.obstacle.startswith(IN_USE):
            advice = "close it there first"
        raise Refusal(
            f"jalopy run: conversation {label}: {opened.obstacle} ({advice})", exit_codes.IO_ERROR
        )
    if opened.notice:
        say(f"jalopy run: {opened.notice}")
    return opened
