"""``jalopy run``: one prompt, one answer on stdout, everything else on stderr. No Textual."""

import sys
import time
from dataclasses import dataclass
from typing import Any

from app import engine_access, exit_codes
from app.answer_output import AnswerOutput, stream_answer
from app.engine_thread import EngineThread
from app.figures import count, rate, reply_footer
from app.json_line import json_line
from app.progress_line import ProgressLine
from app.refusals import Refusal, say
from app.reply import Clock, Reply, ReplyMeter
from app.run_session import RunSession, open_session
from app.settings import Settings
from app.thinking import tag_ids


@dataclass(frozen=True)
class RunOptions:
    """What the command line of ``run`` asks for, besides settings."""

    model: str
    prompt: str
    raw: bool = False
    as_json: bool = False
    session: str = ""
    """Name of the saved conversation to go on with; "" for none."""


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
    if options.session and options.raw:
        raise Refusal("jalopy run: --raw has no conversation (leave --session out, or --raw)")
    prompt = read_prompt(options.prompt)
    if not prompt.strip() and not options.raw:
        raise Refusal("jalopy run: the prompt is empty (give it with -p TEXT, or -p - for standard input)")
    session = open_session(options.session, settings.system_prompt) if options.session else None
    engine, progress = EngineThread(), ProgressLine()
    model = engine.run(lambda: engine_access.open_model(settings, options.model, progress.show_opening))
    progress.clear()
    answer = _Answer(model, settings, progress, clock, session)
    # Until the reply begins there is nothing to keep: Ctrl-C then ends the program, whatever is being compiled.
    reply = engine.run(lambda: answer.prepare(prompt, options.raw))
    output = None if options.as_json else AnswerOutput()
    try:
        engine.run(lambda: answer.write(reply, output), on_interrupt=reply.cancel)
    finally:
        unsaved = session.end() if session is not None else ""
    if options.as_json:
        print(json_line(_report(reply, model)), flush=True)
    else:
        say(statistics_line(reply.meter))
    if unsaved:
        say(f"jalopy run: conversation not saved: {unsaved}")
        return exit_codes.IO_ERROR
    return exit_codes.INTERRUPTED if reply.meter.finish_reason == "cancelled" else exit_codes.OK


def statistics_line(meter: ReplyMeter) -> str:
    """Write the figures of one reply for people, e.g. "5.1 tok/s · ... · read 840 prompt tokens at 39.0 tok/s"."""
    read = f"read {count(meter.read_tokens)} prompt tokens"
    if meter.prefill_tps:
        read += f" at {rate(meter.prefill_tps)} tok/s"
    return f"{reply_footer(meter.figures(), meter.ending, names_prompt=False)} · {read}"


class _Answer:
    """What happens in the engine's thread."""

    def __init__(
        self, model: Any, settings: Settings, progress: ProgressLine, clock: Clock, saved: RunSession | None
    ) -> None:
        self._model, self._settings, self._progress, self._clock = model, settings, progress, clock
        self._saved = saved
        self._session: Any = None
        self._chat: Any = None

    def prepare(self, prompt: str, raw: bool) -> Reply:
        """Open a session, which compiles what is not compiled yet, and a reply in it."""
        ids = self._encode(prompt, raw)
        self._session = self._open_session(len(ids))
        if self._saved is not None:
            self._saved.use_states(engine_access.state_files(self._settings))
            self._saved.begin(self._model, self._session, ids, prompt)
        reply = Reply(
            self._session,
            ids,
            engine_access.make_sampling(self._settings),
            max_tokens=self._settings.sampling.max_tokens,
            spelled=tag_ids(self._model.tokenizer.control_texts),
            on_prompt_progress=lambda done, total: self._progress.show_prompt(done, total, reply.meter.prefill_s),
            clock=self._clock,
        )
        self._progress.clear()
        for line in self._model.notices:
            say(f"jalopy: {line}")
        return reply

    def write(self, reply: Reply, output: AnswerOutput | None) -> None:
        """Make the reply and write it as it comes."""
        try:
            stream_answer(
                reply, self._saved.watch(reply, output) if self._saved is not None else output, self._progress
            )
        finally:
            if self._saved is not None:
                self._saved.finish(reply, self._chat.opening)
            self._session.close()

    def _encode(self, prompt: str, raw: bool) -> list[int]:
        if not raw:
            self._chat = chat = self._model.chat()
            if self._saved is None:
                chat.start(self._settings.system_prompt or None)
            else:
                self._saved.tell(chat, self._model.tokenizer)
            return list(chat.add_user(prompt))
        ids = list(self._model.tokenizer.encode(prompt))
        if not ids:
            raise Refusal("jalopy run: the prompt holds no token (give some text with -p)")
        return ids

    def _open_session(self, n_prompt: int) -> Any:
        n_ctx = self._settings.context_size
        longest = self._settings.sampling.max_tokens
        if not n_ctx and longest and self._saved is None:
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
