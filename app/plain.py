"""The line mode: a prompt a line on stdin, the answers on stdout, everything else on stderr. No Textual.

It serves screen readers, pipes and terminals without cursor control, and the end-to-end tests.
"""

import contextlib
import difflib
import sys
import time

from app import engine_access, exit_codes
from app.clean_text import clean_line
from app.conversations.keeper import cause_of
from app.conversations.log_file import LogRefusedError
from app.conversations.recent import last_used, model_key
from app.conversations.store import Opened, Store
from app.engine_thread import EngineThread
from app.figures import count, size
from app.kept_conversation import KeptConversation
from app.line_dialogue import Dialogue
from app.progress_line import ProgressLine
from app.refusals import say
from app.reply import Clock
from app.settings import Settings
from app.start import remember_opened
from app.starter import WHAT_IT_IS, is_starter

PROMPT = "> "
COMMANDS = {
    "/help": "show the commands",
    "/new": "begin a new conversation",
    "/system": "show the system prompt; with a text, or - for none: begin a new conversation with it",
    "/regen": "answer the last message again",
    "/quit": "leave (as ctrl+d does)",
}


def chat(model_path: str, settings: Settings, clock: Clock = time.monotonic) -> int:
    """Open the model and talk until the input ends.

    Raises:
        EngineError: the model cannot be used.
        OSError: stdout cannot be written.
    """
    engine, progress = EngineThread(), ProgressLine()
    model = engine.run(lambda: engine_access.open_model(settings, model_path, progress.show_opening))
    messages = engine.run(model.chat)  # before the session: it starts a process, which no thread should precede
    session = engine.run(
        lambda: model.session(settings.context_size or None, engine_access.kv_type_of(settings, model))
    )
    progress.clear()
    for line in model.notices:
        say(f"jalopy: {line}")
    if doubt := engine_access.recall_tuned(model).doubt:
        say(f"jalopy: {doubt} (jalopy tune MODEL measures again)")
    notice = remember_opened(model_path)
    if notice:
        say(f"jalopy: {notice}")
    if is_starter(model_path):
        say(f"{WHAT_IT_IS} (jalopy models lists real ones, jalopy pull gets one)")
    store = Store() if settings.save_conversations == "on" else None
    kept = KeptConversation(store)
    states = engine_access.state_files(settings) if store is not None else None
    kept.note_model(model, session, states, settings.kv_states_quota_bytes)
    dialogue = Dialogue(engine, model.tokenizer, messages, session, settings, progress, clock, kept)
    tokens = f"context {count(session.n_ctx)} tokens ({size(session.kv_bytes)})"
    say(f"{model.name} · {model.quantization} · {tokens} · {model.threads} threads · /help lists the commands")
    last = _last_conversation(store, model_path) if settings.resume == "last" else None
    if last is not None:
        dialogue.resume(last)
    else:
        dialogue.begin(settings.system_prompt)
    try:
        code = LineMode(dialogue).run()
    except BaseException as error:
        dialogue.end(is_hurried=not isinstance(error, Exception))
        raise
    return code if dialogue.end(is_hurried=code == exit_codes.INTERRUPTED) else code or exit_codes.IO_ERROR


def _last_conversation(store: Store | None, model_path: str) -> Opened | None:
    """Open the conversation that was used last with a model; None where there is none that can be opened."""
    conversation_id = last_used(store, model_key(model_path)) if store is not None else None
    if store is None or conversation_id is None:
        return None
    try:
        return store.open(conversation_id)
    except (LogRefusedError, OSError) as error:
        say(f"jalopy: conversation {conversation_id} cannot be opened: {cause_of(error)}")
        return None


class LineMode:
    """Read lines, hand messages to the dialogue, obey commands."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue

    def run(self) -> int:
        """Serve until the input ends, /quit, or a second Ctrl-C."""
        _enable_editing()
        while True:
            try:
                line = _read_line()
                if line is None:
                    return exit_codes.OK
                if line.strip():
                    self._dialogue.was_interrupted = False
                    if not self._obey(line):
                        return exit_codes.OK
            except KeyboardInterrupt:
                if self._dialogue.was_interrupted:
                    return exit_codes.INTERRUPTED
                self._dialogue.was_interrupted = True
                say("(ctrl+c again, or ctrl+d, quits)")

    def _obey(self, line: str) -> bool:
        """Act on one line; False ends the program."""
        if not line.startswith("/"):
            self._dialogue.ask(line)
            return True
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return False
        if command == "/help":
            for name, meaning in COMMANDS.items():
                say(f"{name:8} {meaning}")
        elif command == "/new":
            self._dialogue.begin(self._dialogue.system_prompt)
            say("new conversation")
        elif command == "/system":
            self._set_system(rest.strip())
        elif command == "/regen":
            self._dialogue.regenerate()
        else:
            near = difflib.get_close_matches(command, COMMANDS, n=1, cutoff=0.4)
            hint = f"nearest: {near[0]}" if near else "/help lists them"
            say(f"{clean_line(command, 40)} is no command, nothing was sent ({hint}; a leading space sends it as text)")
        return True

    def _set_system(self, text: str) -> None:
        if not text:
            say(f"system prompt: {self._dialogue.system_prompt or '(none)'}")
            return
        is_none = text == "-"
        self._dialogue.begin("" if is_none else text)
        say(f"new conversation with{'out a' if is_none else ' this'} system prompt")


def _enable_editing() -> None:
    if _is_interactive():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - importing it gives input() a history and line editing


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
