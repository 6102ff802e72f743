"""``jalopy run``: one prompt, one answer on stdout, everything else on stderr. No Textual."""

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from app import engine_access, exit_codes
from app.answer_output import AnswerOutput, stream_answer
from app.engine_thread import EngineThread
from app.figures import count, rate, reply_footer
from app.progress_line import ProgressLine
from app.refusals import Refusal, say
from app.reply import Clock, Reply, ReplyMeter, StopButton
from app.settings import Settings


@dataclass(frozen=True)
class RunOptions:
    """What the command line of ``run`` asks for, besides settings."""

    model: str
    prompt: str
    raw: bool = False
    as_json: bool = False


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
    prompt = read_prompt(options.prompt)
    if not prompt.strip() and not options.raw:
        raise Refusal("jalopy run: the prompt is empty (give it with -p TEXT, or -p - for standard input)")
    engine, progress = EngineThread(), ProgressLine()
    model = engine.run(lambda: engine_access.open_model(settings, options.model, progress.show_opening))
    progress.clear()
    button = StopButton()
    answer = _Answer(model, settings, progress, clock)
    reply = engine.run(lambda: answer.give(prompt, options, button), on_interrupt=button.press)
    if options.as_json:
        print(json.dumps(_report(reply, model)), flush=True)
    else:
        say(statistics_line(reply.meter))
    return exit_codes.INTERRUPTED if reply.meter.finish_reason == "cancelled" else exit_codes.OK


def statistics_line(meter: ReplyMeter) -> str:
    """Write the figures of one reply for people, e.g. "5.1 tok/s · ... · read 840 prompt tokens at 39.0 tok/s"."""
    read = f"read {count(meter.read_tokens)} prompt tokens"
    if meter.prefill_tps:
        read += f" at {rate(meter.prefill_tps)} tok/s"
    return f"{reply_footer(meter.figures(), meter.ending)} · {read}"


class _Answer:
    """What happens in the engine's thread."""

    def __init__(self, model: Any, settings: Settings, progress: ProgressLine, clock: Clock) -> None:
        self._model, self._settings, self._progress, self._clock = model, settings, progress, clock

    def give(self, prompt: str, options: RunOptions, button: StopButton) -> Reply:
        ids = self._encode(prompt, options.raw)
        session = self._open_session(len(ids))
        try:
            reply = self._prepare(session, ids)
            button.guard(reply)
            stream_answer(reply, None if options.as_json else AnswerOutput(), self._progress)
        finally:
            session.close()
        return reply

    def _encode(self, prompt: str, raw: bool) -> list[int]:
        if not raw:
            chat = self._model.chat()
            chat.start(self._settings.system_prompt or None)
            ids = list(chat.add_user(prompt))
            if self._model.chat_template.notice:
                say(f"jalopy: {self._model.chat_template.notice}")
            return ids
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
        session = self._model.session(n_ctx or None, self._settings.kv_type)
        if n_prompt >= session.n_ctx:
            sizes = f"the prompt has {n_prompt} tokens, but the context holds {session.n_ctx}"
            session.close()
            raise Refusal(f"jalopy run: {sizes} (shorten it, or try a larger --ctx)", exit_codes.BAD_DATA)
        return session

    def _prepare(self, session: Any, ids: list[int]) -> Reply:
        reply = Reply(
            session,
            ids,
            engine_access.make_sampling(self._settings),
            max_tokens=self._settings.sampling.max_tokens,
            on_prompt_progress=lambda done, total: self._progress.show_prompt(done, total, reply.meter.prefill_s),
            clock=self._clock,
        )
        return reply


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
