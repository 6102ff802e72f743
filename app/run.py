"""``jalopy run``: one prompt, one answer on stdout, everything else on stderr. No Textual."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from app import engine_access, exit_codes, garbage
from app.answer_output import AnswerOutput, stream_answer
from app.context_room import NoRoomError, Prompt
from app.engine_thread import EngineThread
from app.figures import count, rate, reply_footer
from app.json_line import json_line
from app.progress_line import ProgressLine
from app.record import record
from app.refusals import Refusal, say
from app.reply import Clock, Reply, ReplyMeter
from app.settings import Settings
from app.thinking import tag_ids

if TYPE_CHECKING:
    from app.kept_conversation import KeptConversation


@record
class RunOptions:
    """What the command line of ``run`` asks for, besides settings."""

    model: str
    prompt: str
    raw: bool = False
    as_json: bool = False
    session: str | None = None
    """Title or number of the saved conversation to go on with; None for none."""


def read_prompt(argument: str) -> str:
    """Return the prompt of ``-p``: the text itself, or all of stdin for ``-``."""
    if argument != "-":
        # Arguments that are not UTF-8 arrive with lone surrogates, which no tokenizer knows.
        return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if sys.stdin is None:
        raise Refusal("jalopy run: standard input is closed (give the prompt with -p TEXT)")
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def run(options: RunOptions, settings: Settings, clock: Clock = time.monotonic) -> int:
    """Answer one prompt; Ctrl-C stops the answer and keeps what there is.

    Raises:
        EngineError: the model or the prompt cannot be used.
        OSError: stdout cannot be written.
    """
    if options.session is not None and not options.session.strip():
        raise Refusal("jalopy run: the name of --session is empty (give a title or a number, or leave --session out)")
    if options.session and options.raw:
        raise Refusal("jalopy run: --raw has no conversation (leave --session out, or --raw)")
    prompt = read_prompt(options.prompt)
    if not prompt.strip() and not options.raw:
        raise Refusal("jalopy run: the prompt is empty (give it with -p TEXT, or -p - for standard input)")
    session = _saved_conversation(options.session, settings) if options.session else None
    try:
        code = _answer(options, prompt, session, settings, clock)
    except BaseException as error:
        if session is not None:
            _say_unsaved(session.end(is_hurried=not isinstance(error, Exception)))
        raise
    return exit_codes.IO_ERROR if session is not None and _say_unsaved(session.end()) else code


def _saved_conversation(name: str, settings: Settings) -> KeptConversation:
    from app.run_session import open_session

    return open_session(name, settings.system_prompt)


def _answer(
    options: RunOptions, prompt: str, session: KeptConversation | None, settings: Settings, clock: Clock
) -> int:
    engine, progress = EngineThread(), ProgressLine()
    garbage.postpone()
    try:
        model = engine.run(lambda: engine_access.open_model(settings, options.model, progress.show_opening))
        progress.clear()
        answer = _Answer(model, settings, progress, clock, session)
        # Until the reply begins there is nothing to keep: Ctrl-C then ends the program, whatever is being compiled.
        reply = engine.run(lambda: answer.prepare(prompt, options.raw))
    finally:
        garbage.settle()
    output = None if options.as_json else AnswerOutput()
    engine.run(lambda: answer.write(reply, output), on_interrupt=reply.cancel)
    if options.as_json:
        print(json_line(_report(reply, model)), flush=True)
    else:
        say(statistics_line(reply.meter))
    return exit_codes.INTERRUPTED if reply.meter.finish_reason == "cancelled" else exit_codes.OK


def _say_unsaved(reason: str) -> bool:
    if reason:
        say(f"jalopy run: conversation not saved: {reason}")
    return bool(reason)


def statistics_line(meter: ReplyMeter) -> str:
    """Write the figures of one reply for people, e.g. "5.1 tok/s · ... · read 840 prompt tokens at 39.0 tok/s"."""
    read = f"read {count(meter.read_tokens)} prompt tokens"
    if meter.prefill_tps:
        read += f" at {rate(meter.prefill_tps)} tok/s"
    return f"{reply_footer(meter.figures(), meter.ending, names_prompt=False)} · {read}"


class _Answer:
    """What happens in the engine's thread."""

    def __init__(
        self, model: Any, settings: Settings, progress: ProgressLine, clock: Clock, saved: KeptConversation | None
    ) -> None:
        self._model, self._settings, self._progress, self._clock = model, settings, progress, clock
        self._saved = saved
        self._session: Any = None
        self._chat: Any = None

    def prepare(self, prompt: str, raw: bool) -> Reply:
        """Open a session, which compiles what is not compiled yet, and a reply in it."""
        if self._saved is not None:
            ids = self._go_on(self._saved, prompt)
        else:
            ids = self._encode(prompt, raw)
            self._session = self._open_session(len(ids))
        reply = Reply(
            self._session,
            ids,
            engine_access.make_sampling(self._settings, self._model),
            max_tokens=self._settings.sampling.max_tokens,
            stop=self._chat.stops if self._chat is not None else (),
            spelled=tag_ids(self._model.tokenizer.control_texts),
            on_prompt_progress=lambda done, total: self._note_progress(reply, done, total),
            clock=self._clock,
        )
        self._progress.clear()
        for line in self._model.notices:
            say(f"jalopy: {line}")
        return reply

    def write(self, reply: Reply, output: AnswerOutput | None) -> None:
        """Make the reply and write it as it comes."""
        try:
            if self._saved is not None:
                output = self._saved.watch(reply, self._chat.opening, output)
            stream_answer(reply, output, self._progress)
        finally:
            if self._saved is not None:
                self._saved.finish(reply)
                self._saved.close_states()
            self._session.close()

    def _note_progress(self, reply: Reply, done: int, total: int) -> None:
        self._progress.show_prompt(done, total, reply.meter.prefill_s)
        if self._saved is not None:
            self._saved.note_progress()

    def _go_on(self, saved: KeptConversation, prompt: str) -> list[int]:
        """Open a session for a saved conversation, and let it go on with a message; returns what is to be read."""
        model, settings = self._model, self._settings
        self._chat = chat = model.chat()  # before the session: it starts a process, which no thread should precede
        kv_type = engine_access.kv_type_of(settings, model)
        self._session = session = model.session(settings.context_size or None, kv_type)
        saved.note_model(model, session, engine_access.state_files(settings), settings.kv_states_quota_bytes)
        saved.tell(chat, model.tokenizer)
        try:
            ids, _ = saved.fit(chat, session, lambda: Prompt(list(chat.add_user(saved.to_send(prompt)))))
        except NoRoomError as error:
            session.close()
            needed, room = count(error.needed_tokens), count(session.n_ctx)
            sizes = f"with room for an answer the message needs {needed} tokens, but the context holds {room}"
            raise Refusal(f"jalopy run: {sizes} (shorten it, or try a larger --ctx)", exit_codes.BAD_DATA) from None
        saved.note_asked(prompt)
        return ids

    def _encode(self, prompt: str, raw: bool) -> list[int]:
        if not raw:
            self._chat = chat = self._model.chat()
            chat.start(self._settings.system_prompt or None)
            return list(chat.add_user(prompt))
        ids = list(self._model.tokenizer.encode(prompt))
        if not ids:
            raise Refusal("jalopy run: the prompt holds no token (give some text with -p)")
        return ids

    def _open_session(self, n_prompt: int) -> Any:
        n_ctx = self._settings.context_size
        longest = self._settings.sampling.max_tokens
        if not n_ctx and longest:
            # One answer of known length needs no room for a conversation.
            n_ctx = min(n_prompt + longest, self._model.config.context_length)
        session = self._model.session(n_ctx or None, engine_access.kv_type_of(self._settings, self._model))
        if n_prompt >= session.n_ctx:
            sizes = f"the prompt has {n_prompt} tokens, but the context holds {session.n_ctx}"
            session.close()
            raise Refusal(f"jalopy run: {sizes} (shorten it, or try a larger --ctx)", exit_codes.BAD_DATA)
        return session


def _report(reply: Reply, model: Any) -> dict[str, Any]:
    meter = reply.meter
    return {
        "text": reply.text,
        "prompt_tokens": meter.prompt_tokens,
        "tokens": meter.tokens,
        "prefill_tps": meter.prefill_tps,
        "decode_tps": meter.decode_tps,
        "first_token_s": meter.first_token_s,
        "finish_reason": meter.finish_reason,
        "model": model.name,
    }
