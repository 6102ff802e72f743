"""The line mode: a prompt a line on stdin, the answers on stdout, everything else on stderr. No
Textual.

It serves screen readers, pipes and terminals without cursor control, and the end-to-end tests.
"""

import contextlib
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.backend.reply import Clock
from app.cli.asking import CallQuestions, agrees, can_ask
from app.cli.line_commands import LineCommands
from app.cli.line_dialogue import Dialogue, model_line
from app.cli.output import ProgressLine, follow_opening
from app.conversations.journal import open_storage
from app.conversations.locks import StoreError
from app.conversations.store import LoadedConversation, Store, model_key
from app.models.library.choose_model import remember_opened
from app.program import exit_codes
from app.program.bundled_model import WHAT_IT_IS, is_starter
from app.program.refusals import say
from app.program.remote_model import ModelPlace, RemoteModel
from app.program.settings import NEW, Settings
from app.session.events import Event
from app.session.generation import GenerationChoice
from app.session.headless import HeadlessChat
from app.tui import chat_options

PROMPT = "> "


def chat(model: str | RemoteModel, settings: Settings, clock: Clock = time.monotonic) -> int:
    """Open the model and talk until the input ends.

    Raises:
        EngineError: the model cannot be used.
        OSError: stdout cannot be written.
    """
    place = Path(model) if isinstance(model, str) else model
    storage = open_storage(settings)
    progress = ProgressLine()
    generation = GenerationChoice(settings)
    tools = chat_options.tool_box(settings, can_ask())
    options = chat_options.shell_options(
        settings, keeps_states=storage.store is not None, tools=tools
    )
    on_opened = partial(remember_opened, directories=settings.model_directories)
    options = replace(
        options, generation=generation, sampling=generation.sampling, on_opened=on_opened
    )
    may_read_ahead = partial(chat_options.may_read_ahead, settings)
    questions = CallQuestions()
    talk = HeadlessChat(
        options,
        storage,
        settings.system_prompt,
        clock,
        progress.show_status,
        may_read_ahead,
        questions.may_run,
    )
    questions.talk = talk
    try:
        code = _serve(
            Dialogue(talk, progress),
            place,
            storage.store if storage.resume != NEW else None,
            progress,
        )
    except BaseException as error:
        _close(talk, is_hurried=not isinstance(error, Exception))
        raise
    if _close(talk, is_hurried=code == exit_codes.INTERRUPTED):
        return code
    return code or exit_codes.IO_ERROR


def _serve(
    dialogue: Dialogue, place: ModelPlace, store: Store | None, progress: ProgressLine
) -> int:
    talk = dialogue.talk
    last = _last_conversation(store, place)
    events: list[Event] = []
    model = follow_opening(talk, talk.open(place, last), progress, "jalopy", events.append)
    for line in model.notices:
        say(f"jalopy: {line}")
    if is_starter(str(place)):
        say(f"{WHAT_IT_IS} (jalopy models lists real ones, jalopy pull gets one)")
    say(f"{model_line(model, talk.engine_thread.status.threads)} · /help lists the commands")
    dialogue.tell_notices()
    if last is not None:
        dialogue.show_resumed(last, [event for event in events if event is not model])
    return _take_lines(dialogue)


def _close(talk: HeadlessChat, is_hurried: bool) -> bool:
    """Save everything; False if that failed."""
    unsaved = talk.close(is_hurried)
    if unsaved:
        say(f"jalopy: conversation not saved: {unsaved}")
    return not unsaved


def _last_conversation(store: Store | None, place: ModelPlace) -> LoadedConversation | None:
    """Open the conversation that was used last with a model; None if none can be opened."""
    is_resumed = store is not None and not is_starter(str(place))  # its context is for one try
    if store is None or not is_resumed:
        return None
    try:
        conversation_id = store.last_used(model_key(place))
        if conversation_id is not None:
            return store.open(conversation_id)
        return None
    except StoreError as error:
        say(f"jalopy: the last conversation cannot be opened: {error}")
        return None


def _take_lines(dialogue: Dialogue) -> int:
    """Serve until the input ends, /quit, or a second Ctrl-C."""
    commands = LineCommands(dialogue, agrees if can_ask() else None)
    if _is_interactive():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - importing it gives input() a history and line editing
    while not dialogue.has_left:
        try:
            line = _read_line()
            if line is None:
                break
            if line.strip():
                dialogue.was_interrupted = False
            commands.take_line(line)
        except KeyboardInterrupt:
            if dialogue.was_interrupted:
                return exit_codes.INTERRUPTED
            dialogue.was_interrupted = True
            say("(ctrl+c again, or ctrl+d, quits)")
    return exit_codes.OK


def _is_interactive() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _read_line() -> str | None:
    """Return the next line without its newline, or None at the end of the input."""
    if _is_interactive():
        try:
            return input(PROMPT)
        except EOFError:
            print()
            return None
    if sys.stdin is None:
        return None
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        say("")  # ends the line of the last prompt
        return None
    return line.rstrip("\r\n")
