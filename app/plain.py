"""The line mode: a prompt a line on stdin, the answers on stdout, everything else on stderr. No Textual.

It serves screen readers, pipes and terminals without cursor control, and the end-to-end tests.
"""

import contextlib
import difflib
import sys
import time
from collections.abc import Callable, Collection
from typing import Any

from app import engine_access, exit_codes
from app.answer_output import AnswerOutput, stream_answer
from app.clean_text import clean_line
from app.engine_thread import EngineThread
from app.figures import count, reply_footer, size
from app.progress_line import ProgressLine
from app.refusals import exit_code_of, say
from app.reply import Clock, Reply, StopButton
from app.settings import Settings
from app.start import remember_opened
from app.starter import WHAT_IT_IS, is_starter
from app.thinking import tag_ids

PROMPT = "> "
COMMANDS = {
    "/help": "show the commands",
    "/new": "begin a new conversation",
    "/system": "show the system prompt; with a text: begin a new conversation with it",
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
    tags = tag_ids(model.tokenizer.control_texts)
    dialogue = Dialogue(engine, messages, session, settings, progress, clock, tags)
    dialogue.begin(settings.system_prompt)
    tokens = f"context {count(session.n_ctx)} tokens ({size(session.kv_bytes)})"
    say(f"{model.name} · {model.quantization} · {tokens} · {model.threads} threads · /help lists the commands")
    return LineMode(dialogue).run()


class Dialogue:
    """One conversation with one model: what the line mode can ask for. Each turn ends in a line, never in a crash."""

    def __init__(
        self,
        engine: EngineThread,
        messages: Any,
        session: Any,
        settings: Settings,
        progress: ProgressLine,
        clock: Clock,
        tags: Collection[int] = (),
    ) -> None:
        self._tags = tags
        self._engine, self._chat, self._session = engine, messages, session
        self._settings, self._progress, self._clock = settings, progress, clock
        self._last_reply: Reply | None = None
        self.system_prompt = ""
        self.was_interrupted = False
        """Whether Ctrl-C came since the last line was read: the next one quits."""

    def begin(self, system_prompt: str) -> None:
        """Start a new conversation."""
        self.system_prompt = system_prompt
        self._engine.run(lambda: self._chat.start(system_prompt or None))

    def ask(self, text: str) -> None:
        """Answer a message."""
        n_messages = len(self._chat.messages)
        self._turn(lambda: list(self._chat.add_user(text)), keep_messages=n_messages)

    def regenerate(self) -> None:
        """Answer the last message again."""
        if not self._chat.messages or self._chat.messages[-1].role != "assistant":
            say("there is no answer to give again")
            return
        earlier = self._last_reply
        self._chat.rewind(len(self._chat.messages) - 1)
        n_messages = len(self._chat.messages)
        self._turn(lambda: list(self._chat.prompt_ids()), keep_messages=n_messages)
        if len(self._chat.messages) == n_messages and earlier:
            self._chat.add_reply(earlier.ids, earlier.text)
            self._last_reply = earlier
            say("the earlier answer stays")

    def _turn(self, prompt: Callable[[], list[int]], keep_messages: int) -> None:
        """Generate one reply; where none comes, only the first messages are kept.

        Raises:
            KeyboardInterrupt: a second Ctrl-C did not wait for the first.
            OSError: stdout cannot be written.
        """
        button = StopButton()

        def stop() -> None:
            self.was_interrupted = True
            button.press()

        reply: Reply | None = None
        try:
            reply = self._engine.run(lambda: self._prepare(prompt(), button), stop)
            if reply:
                self._engine.run(lambda: self._stream(reply), stop)
        except Exception as error:
            if exit_code_of(error) is None or isinstance(error, OSError):
                raise
            say(str(error) or "not enough memory for this turn (/new needs less)")
        self._settle(reply, keep_messages)

    def _settle(self, reply: Reply | None, keep_messages: int) -> None:
        self._progress.clear()
        if reply is None or not reply.ids:
            self._chat.rewind(keep_messages)
        else:
            self._chat.add_reply(reply.ids, reply.text)
            self._last_reply = reply
        if reply and reply.meter.finish_reason != "error":
            say(reply_footer(reply.meter.figures(), reply.meter.ending))

    def _prepare(self, ids: list[int], button: StopButton) -> Reply | None:
        room = self._session.n_ctx - len(ids)
        if room < 1:
            size = f"{count(len(ids))} tokens with this message, but the context holds {count(self._session.n_ctx)}"
            say(f"not sent: the conversation has {size} (/new begins another one)")
            return None
        reply = Reply(
            self._session,
            ids,
            engine_access.make_sampling(self._settings),
            max_tokens=self._settings.sampling.max_tokens,
            spelled=self._tags,
            on_prompt_progress=lambda done, total: self._progress.show_prompt(done, total, reply.meter.prefill_s),
            clock=self._clock,
        )
        button.guard(reply)
        return reply

    def _stream(self, reply: Reply) -> None:
        stream_answer(reply, AnswerOutput(), self._progress)
        if not reply.text.strip():
            say("(empty answer)")


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
        self._dialogue.begin(text)
        say("new conversation with this system prompt")


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
