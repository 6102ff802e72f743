"""Line mode, ``jalopy chat --plain``: messages on stdin, replies on stdout, the rest on stderr.

It is for screen readers, pipes, terminals without cursor control, and end-to-end tests.
"""

import contextlib
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.backend.reply import Clock
from app.cli.line_commands import LineCommands
from app.cli.line_dialogue import Dialogue, model_line
from app.cli.output import ProgressLine, follow_opening
from app.cli.questions import CallQuestions, agrees, can_ask
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
from app.session.headless import HeadlessChat
from app.session.request import date_to_name
from app.tui import chat_options

PROMPT = "> "


def chat(model: str | RemoteModel, settings: Settings, clock: Clock = time.monotonic) -> int:
    """Open the model and chat until the input ends; return the exit code.

    Raises:
        EngineError: the model cannot be used.
        OSError: stdout cannot be written.
    """
    model_place = Path(model) if isinstance(model, str) else model
    storage = open_storage(settings)
    progress = ProgressLine()
    tools = chat_options.tool_box(settings, can_ask())
    options = chat_options.shell_options(
        settings, keeps_states=storage.store is not None, tools=tools
    )
    on_opened = partial(
        remember_opened,
        directories=settings.model_directories,
        draft_model=settings.draft_model,
    )
    options = replace(options, recalls_choices=True, on_opened=on_opened)
    may_read_ahead = partial(chat_options.may_read_ahead, settings)
    questions = CallQuestions()
    headless = HeadlessChat(
        options,
        storage,
        settings.system_prompt,
        clock,
        progress.show_status,
        may_read_ahead,
        questions.may_run,
        partial(date_to_name, settings),
    )
    questions.chat = headless
    try:
        code = _chat_until_end(
            Dialogue(headless, progress, settings.compact, _is_typed()),
            model_place,
            storage.store if storage.resume != NEW else None,
            progress,
        )
    except BaseException as error:
        _close(headless, is_hurried=not isinstance(error, Exception))
        raise
    if _close(headless, is_hurried=code == exit_codes.INTERRUPTED):
        return code
    return code or exit_codes.IO_ERROR


def _chat_until_end(
    dialogue: Dialogue, model_place: ModelPlace, store: Store | None, progress: ProgressLine
) -> int:
    headless = dialogue.headless
    last = _last_conversation(store, model_place)
    events: list[Event] = []
    model = follow_opening(
        headless, headless.open(model_place, last), progress, "jalopy", events.append
    )
    for line in model.notices:
        say(f"jalopy: {line}")
    if is_starter(str(model_place)):
        say(f"{WHAT_IT_IS} (jalopy models lists larger ones, jalopy pull downloads one)")
    say(f"{model_line(model, headless.engine_thread.status.threads)} · /help lists the commands")
    dialogue.say_notices()
    dialogue.say_start()
    if last is not None:
        dialogue.show_resumed(last, [event for event in events if event is not model])
    return _read_lines(dialogue)


def _close(headless: HeadlessChat, is_hurried: bool) -> bool:
    """Save the conversation and return whether that succeeded."""
    reason = headless.close(is_hurried)
    if reason:
        say(f"jalopy: conversation not saved: {reason}")
    return not reason


def _last_conversation(store: Store | None, model_place: ModelPlace) -> LoadedConversation | None:
    """Open the last conversation with a model; None if there is none to resume."""
    # The starter's small context is not worth resuming.
    if store is None or is_starter(str(model_place)):
        return None
    try:
        conversation_id = store.last_used(model_key(model_place))
        if conversation_id is not None:
            return store.open(conversation_id)
        return None
    except StoreError as error:
        say(f"jalopy: cannot open the last conversation: {error}")
        return None


def _read_lines(dialogue: Dialogue) -> int:
    """Read lines until the input ends, /quit, or a second Ctrl-C."""
    commands = LineCommands(dialogue, agrees if can_ask() else None)
    if _is_interactive():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - importing it gives input() history and line editing
    while not dialogue.has_left:
        try:
            line = _read_line()
            if line is None:
                break
            if line.strip():
                dialogue.was_interrupted = False
                dialogue.end_idle_summary(is_needed=not line.startswith("/"))
            commands.take_line(line)
        except KeyboardInterrupt:
            if dialogue.was_interrupted:
                return exit_codes.INTERRUPTED
            dialogue.was_interrupted = True
            say("(press ctrl+c again, or ctrl+d, to quit)")
    dialogue.end_idle_summary()
    return exit_codes.OK


def _is_typed() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _is_interactive() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _read_line() -> str | None:
    """Return the next line without its newline; None at the end of the input."""
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
        say("")  # end the line of the last prompt
        return None
    return line.rstrip("\r\n")
