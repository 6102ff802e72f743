"""``jalopy run``: one prompt, one answer on stdout, everything else on stderr. No Textual."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.chat import events
from app.chat.answer_form import GRAMMAR, REGEX, SCHEMA, AnswerForm, bounded_form, read_form_file
from app.chat.options import ChatOptions
from app.chat.reply import Clock, ReplyMeter
from app.chat.status import EngineStatus
from app.chat.talk import Talk
from app.chat.turns import LEFT_OUT, SENT_TOGETHER
from app.cli.answer_output import AnswerOutput, interrupt_stops, write_answer
from app.cli.progress_line import ProgressLine
from app.cli.run_session import SavingWatch, drop_unused, go_on_with, session_at_hand
from app.conversations.conversation import Ending
from app.conversations.journal import AtHand
from app.conversations.lines import whole_footer
from app.conversations.log_file import NO_LOCKS
from app.program import exit_codes, garbage
from app.program.refusals import Refusal, say
from app.program.remote_model import RemoteModel
from app.program.settings import Settings
from app.text import figures
from app.text.figures import count, rate
from app.text.json_line import json_line
from app.text.record import record
from app.tui.chat_options import shell_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine import Model
    from engine.prompt.chat_prompt import ChatPrompt

_FORMS = {SCHEMA: "schema", GRAMMAR: "grammar", REGEX: "regex"}
"""Options that give the answer a form, by the form's kind."""


@record
class RunOptions:
    """Arguments of ``run``, besides settings."""

    model: str | RemoteModel
    prompt: str | None = None
    """Behind -p; "-" is standard input alone."""
    words: Sequence[str] = ()
    """The prompt as words of the command line."""
    raw: bool = False
    as_json: bool = False
    schema: str | None = None
    grammar: str | None = None
    """Files with the form of the answer: a JSON schema, or a grammar in GBNF or Lark."""
    regex: str | None = None
    """A regular expression that the answer is to match."""
    session: str | None = None
    """Title or number of the saved conversation to go on with; None for none."""


def read_prompt(argument: str | None, words: Sequence[str] = ()) -> str:
    """Return the prompt: what the command line says, and behind it what comes through a pipe.

    Raises:
        Refusal: it is given twice, or standard input is closed.
    """
    if argument is not None and words:
        raise Refusal("jalopy run: the prompt is given twice (as words, and with -p)")
    if argument == "-" or (argument is None and not words):
        if sys.stdin is None or (argument is None and sys.stdin.isatty()):
            raise Refusal('jalopy run: there is no prompt (jalopy run MODEL "TEXT", or text through a pipe)')
        return _standard_input()
    # Arguments that are not UTF-8 arrive with lone surrogates, which no tokenizer knows.
    said = (argument or " ".join(words)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    piped = _standard_input() if _is_piped() else ""
    return f"{said}\n\n{piped}" if piped.strip() else said


def _standard_input() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file: a terminal, a socket or nothing is not waited for."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def run(options: RunOptions, settings: Settings, clock: Clock = time.monotonic) -> int:
    """Answer one prompt; Ctrl-C stops the answer and keeps what was written.

    Raises:
        EngineError: the model or the prompt cannot be used.
        OSError: stdout cannot be written.
    """
    if options.session is not None and not options.session.strip():
        raise Refusal("jalopy run: the name of --session is empty (give a title or a number, or leave --session out)")
    if options.session and options.raw:
        raise Refusal("jalopy run: --raw has no conversation (leave --session out, or --raw)")
    prompt = read_prompt(options.prompt, options.words)
    if not prompt.strip() and not options.raw:
        raise Refusal('jalopy run: the prompt is empty (jalopy run MODEL "TEXT", or text through a pipe)')
    form = _wanted_form(options)
    progress = ProgressLine()
    at_hand = session_at_hand(settings) if options.session else AtHand()
    saving = SavingWatch(progress)

    def watch(status: EngineStatus) -> None:
        progress.show_status(status)
        saving.look(at_hand.journal.trouble)

    talk = Talk(_engine_options(options, prompt, settings, form), at_hand, settings.system_prompt, clock, watch)
    this_run = _Run(talk, options, progress)
    try:
        code = this_run.answer(prompt)
    except BaseException as error:
        saving.end(talk.close(is_hurried=not isinstance(error, Exception)))
        drop_unused(talk, this_run.begun_id)
        raise
    return exit_codes.IO_ERROR if saving.end(talk.close()) else code


def _wanted_form(options: RunOptions) -> AnswerForm | None:
    """Return the form of the answer, checked before anything is opened; None for any."""
    given = [(kind, name, value) for kind, name in _FORMS.items() if (value := getattr(options, name)) is not None]
    if len(given) > 1:
        names = " and ".join(f"--{name}" for _, name, _ in given)
        raise Refusal(f"jalopy run: {names} both give the answer a form (choose one)")
    if not given:
        return None
    from app.chat.form_constraint import check_form

    kind, name, value = given[0]
    try:
        form = bounded_form(kind, value, f"--{name}") if kind == REGEX else read_form_file(kind, value)
        check_form(form)
    except Refusal as refused:
        raise Refusal(f"jalopy run: {refused}", refused.exit_code) from None
    return form


def _engine_options(options: RunOptions, prompt: str, settings: Settings, form: AnswerForm | None) -> ChatOptions:
    chosen = shell_options(settings, bool(options.session), form)
    return chosen if options.session else replace(
        chosen, size_context=_sized_for(prompt, options.raw, settings), least_reply_tokens=1
    )  # fmt: skip


def _sized_for(prompt: str, raw: bool, settings: Settings) -> Callable[[Model, ChatPrompt], int | None]:
    """Return a function that computes the context for one answer of known length, without room for more turns."""

    def size(model: Model, chat: ChatPrompt) -> int | None:
        longest = settings.sampling.max_tokens
        if not longest:
            return None
        if raw:
            n_prompt = len(model.tokenizer.encode(prompt))
        else:
            chat.start(settings.system_prompt or None)
            n_prompt = len(chat.add_user(prompt))
        return min(n_prompt + longest, model.config.context_length)

    return size


def statistics_line(meter: ReplyMeter, ending: Ending) -> str:
    """Write the figures of one reply for people, e.g. "5.1 tok/s · ... · read 840 prompt tokens at 39.0 tok/s"."""
    footer = whole_footer(meter.figures(), ending, names_prompt=False)
    if not meter.prompt_tokens:  # not every server tells
        return footer
    read = f"read {count(meter.read_tokens)} prompt tokens"
    if meter.prefill_tps:
        read += f" at {rate(meter.prefill_tps)} tok/s"
    return f"{footer} · {read}"


class _Run:
    def __init__(self, talk: Talk, options: RunOptions, progress: ProgressLine) -> None:
        self._talk, self._options, self._progress = talk, options, progress
        self.begun_id = ""
        """Of the conversation that begins with this run."""

    def answer(self, prompt: str) -> int:
        """Open the model, answer and return the exit code."""
        model = self._open()
        output = None if self._options.as_json else AnswerOutput()
        with interrupt_stops(self._talk.stop):
            told = self._talk.complete(prompt) if self._options.raw else self._talk.ask(prompt)
            ending = write_answer(told, output, self._progress, self._tell)
        meter = self._talk.bridge.status.meter
        if isinstance(ending, events.PromptRefused):
            raise self._refusal(ending)
        if isinstance(ending, events.GenerationFailed):
            raise ending.error or Refusal(f"jalopy run: {ending.reason}")
        is_stopped = not isinstance(ending, events.GenerationFinished) or ending.ending is Ending.STOPPED
        if meter is not None:
            how = ending.ending if isinstance(ending, events.GenerationFinished) else Ending.STOPPED
            raw = ending.raw if isinstance(ending, events.GenerationFinished) else ""
            if self._options.as_json:
                print(json_line(_report(raw, meter, model.full_name)), flush=True)
            else:
                say(statistics_line(meter, how))
        return exit_codes.INTERRUPTED if is_stopped else exit_codes.OK

    def _open(self) -> events.ModelLoaded:
        # Until the reply begins there is nothing to keep: Ctrl-C then ends the program, whatever is being compiled.
        garbage.postpone()
        try:
            opened = go_on_with(self._options.session, self._talk) if self._options.session else None
            place = Path(self._options.model) if isinstance(self._options.model, str) else self._options.model
            self.begun_id = "" if opened is not None else self._talk.turns.journal.id
            for event in self._talk.open(place, opened):
                self._tell(event)
        finally:
            garbage.settle()
        self._progress.clear()
        model = self._talk.turns.model
        assert model is not None
        for line in model.notices:
            say(f"jalopy: {line}")
        if self._talk.turns.journal.is_unlocked:
            say(f"jalopy run: {NO_LOCKS}")
        return model

    def _tell(self, event: events.Event) -> None:
        if isinstance(event, events.ModelFailed):
            self._progress.clear()
            raise event.error or Refusal(f"jalopy run: {event.reason}")
        if isinstance(event, events.ConversationTakenUp):
            if event.trouble:
                say(f"jalopy run: {event.trouble}")
            if event.restored_tokens:
                say(figures.back(event.restored_tokens, event.restored_s, event.read_s))
        elif isinstance(event, events.MessagesJoined):
            say(SENT_TOGETHER)
        elif isinstance(event, events.UnansweredLeftOut):
            say(LEFT_OUT)
        elif isinstance(event, events.TurnsDropped):
            say(figures.dropped_turns(event.n_turns, event.n_tokens, event.read_tokens, event.read_s))

    def _refusal(self, refused: events.PromptRefused) -> Refusal:
        needed, room = refused.needed_tokens, refused.n_ctx
        if self._options.session:
            sizes = f"with room for an answer the message needs {count(needed)} tokens"
        else:
            sizes = f"the prompt has {needed - 1} tokens"
        line = f"jalopy run: {sizes}, but the context holds {count(room)} (shorten it, or try a larger --ctx)"
        return Refusal(line, exit_codes.BAD_DATA)


def _report(text: str, meter: ReplyMeter, model: str) -> dict[str, Any]:
    return {
        "text": text,
        "prompt_tokens": meter.prompt_tokens,
        "tokens": meter.tokens,
        "prefill_tps": meter.prefill_tps,
        "decode_tps": meter.decode_tps,
        "first_token_s": meter.first_token_s,
        "finish_reason": meter.finish_reason,
        "model": model,
    }
