"""A prompt and its reply, reported in events; and several replies to one prompt."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.backend.engine_link import EngineLink, WrittenReply
from app.backend.local.model import LocalModel, ReplyPrefix, TurnPrompt
from app.backend.local.picture_reading import PictureReading
from app.backend.options import ChatOptions
from app.backend.reply_text import ReplyEmitter
from app.backend.status import Activity
from app.conversations.conversation import ASSISTANT, Ending, PromptMessage
from app.conversations.session_options import SessionOptions
from app.program.refusals import Refusal
from app.session import events
from app.session.events import reason_of
from engine.errors import Cancelled, MemoryPlanError
from engine.prompt.thinking import ThinkingMode

if TYPE_CHECKING:
    from engine import Model, Sampling, Session
    from engine.prompt.tools.split import CallSplitter

_POLL_S = 0.1
_LEAST_AGAINST_LOOPS = {"repeat_penalty": 1.15, "repeat_window": 64, "dry_multiplier": 0.8}
"""Lowest values for a reply that continues after it repeated itself.

DRY works against the repeated text, the penalty against its words. SmolLM2 135M fell into the next
loop with a penalty of 1.1, and into nonsense with 1.2 over 256 tokens.
"""


def _less_repetitive(sampling: Sampling) -> Sampling:
    """Return sampling with penalties on repetition that are at least ``_LEAST_AGAINST_LOOPS``."""
    least = _LEAST_AGAINST_LOOPS
    return replace(sampling, **{name: max(least[name], getattr(sampling, name)) for name in least})


def _with_own_seed(sampling: Sampling, index: int) -> Sampling:
    """Return the sampling of one of several replies.

    Raises Refusal: all replies would be the same.
    """
    if sampling.temperature <= 0:
        raise Refusal(
            "at temperature 0 all answers are the same (/set temperature 0.7 makes them differ)"
        )
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=sampling.seed + index)


def _without_calls(sampling: Sampling, model: Model) -> Sampling:
    """Return sampling that never chooses a token which opens a tool call.

    In formats where several tokens open a call, a call is still possible.
    """
    from engine.sampling.settings import FORBIDDEN_BIAS  # the engine is imported late

    call_format = model.chat_template.call_format
    if call_format is None:
        return sampling
    openings = [
        model.tokenizer.encode(opening, bos=False, special=True) for opening in call_format.openings
    ]
    biases = [(ids[0], FORBIDDEN_BIAS) for ids in openings if len(ids) == 1]
    return replace(sampling, logit_bias=(*sampling.logit_bias, *biases))


class LocalTurn:
    """A prompt and its reply.

    Args:
        session_options: choices of the user for the reply.
        on_progress: called after every token and every block of the prompt.
        call_splitter: takes tool calls out of the answer; None if the model has no tools.
        may_call: whether the reply may call tools; otherwise its calls are left out.
        pictures: follows the encoder; None if the model's pictures are not followed.
        index: index among several replies that are written together; None if there is only one.
        session: session that computes; None for the model's own.
        answer_index: index under which the reply is reported if it is written next to others; None
            for ``index``.

    Attributes:
        on_first_token: called when the prompt is read and a token is generated.
        meter: measurements of the reply.
    """

    def __init__(
        self,
        link: EngineLink,
        local: LocalModel,
        prompt: TurnPrompt,
        options: ChatOptions,
        session_options: SessionOptions,
        on_progress: Callable[[], object],
        call_splitter: CallSplitter | None = None,
        index: int | None = None,
        session: Session | None = None,
        may_call: bool = True,
        answer_index: int | None = None,
        pictures: PictureReading | None = None,
    ) -> None:
        self.prompt = prompt
        self.session_options = session_options
        self.index = index or 0
        self.on_first_token: Callable[[], object] = lambda: None
        self._link = link
        self._local = local
        self._on_progress = on_progress
        self._pictures = pictures
        self._call_splitter = call_splitter
        self._may_call = may_call and call_splitter is not None
        self._answer_index = index if answer_index is None else answer_index
        self._prefix = prompt.prefix or ReplyPrefix((), "", None)
        self._constraint = self._make_constraint()

        ids = prompt.all_ids
        self._n_unread = len(ids) - local.session.reusable(ids)
        mode = ThinkingMode()
        if prompt.chat is not None:
            mode = prompt.chat.thinking
        sampling = options.sampling(session_options.sampling, local.model, mode)
        if index is not None:
            sampling = _with_own_seed(sampling, index)
        if prompt.leaves_loop:
            sampling = _less_repetitive(sampling)
        if not may_call:
            sampling = _without_calls(sampling, local.model)
        self.reply = local.reply(
            prompt,
            sampling,
            int(session_options.sampling.get("max_tokens", options.settings.sampling.max_tokens)),
            self._constraint,
            on_prompt_progress=self._on_prefill_progress,
            clock=link.now_s,
            session=session,
        )
        self.meter = self.reply.meter
        self._emitter = ReplyEmitter(
            self._emit,
            self.meter,
            prompt.opening,
            None if prompt.prefix is None else prompt.prefix.text,
            self._prefix.thinking,
            call_splitter,
            options.emits_pieces,
        )

    def _make_constraint(self) -> Any:
        """Return the form that the reply must have; None for any."""
        constraint = self._local.form_compiler.constraint(
            self.session_options.form, self._prefix.ids, self._raise_if_stopped
        )
        if constraint is None:
            return self._local.fence(self.prompt)
        return constraint

    def written(self) -> WrittenReply:
        """Return tokens and text of the whole reply so far; any thread may call this."""
        return (*self._prefix.ids, *self.reply.ids), self._prefix.text + self.reply.text

    def run(self) -> bool:
        """Write the reply; return whether the conversation now has one, complete or not."""
        try:
            return self._run()
        finally:
            if self._constraint is not None:
                self._constraint.close()

    def _run(self) -> bool:
        turn_starts: tuple[int, ...] = ()
        if self.prompt.chat is not None:
            turn_starts = tuple(self.prompt.chat.turn_starts())
        self._report_progress(
            activity=Activity.READING,
            since_s=self.meter.started_s,
            meter=self.meter,
            turn_starts=turn_starts,
            total=self._n_unread,
        )
        try:
            for piece in self.reply:
                self.on_first_token()
                self._emitter.push(piece)
                self._report_progress(
                    activity=Activity.WRITING, context_used=self._local.session.length
                )
                self._on_progress()
        except BaseException as error:
            if not self.reply.ids:
                raise
            self._end_reply()
            partial_reply = self._finished(Ending.FAILED)
            self._emit(events.GenerationFailed(reason_of(error), partial_reply, error))
            return True

        ending = self.meter.ending
        if ending is Ending.REPEATED:
            self._emitter.begin_again(self.written()[1])
        if ending is Ending.STOPPED and not self.reply.ids:
            self._emit(events.PromptStopped())
            return False
        self._end_reply()
        self._emit(self._finished(ending))
        return True

    def _finished(self, ending: Ending) -> events.GenerationFinished:
        ids, raw = self.written()
        finished = events.GenerationFinished(
            ending, self.meter.figures(), ids, raw, could_call=self._may_call
        )
        splitter = self._call_splitter
        if ending is not Ending.COMPLETE or splitter is None or not self._may_call:
            return finished
        if not splitter.calls:
            return finished
        calls = tuple(replace(call, call_id=secrets.token_hex(5)[:9]) for call in splitter.calls)
        return replace(finished, calls=calls, calls_at=len(raw) - splitter.tail_chars)

    def _end_reply(self) -> None:
        self._emitter.finish()
        if self.prompt.chat is not None and not self.index:
            ids, text = self.written()
            self._local.add_reply(PromptMessage(ASSISTANT, text, ids=ids, raw=text))

    def _emit(self, event: events.Event) -> None:
        if self._answer_index is not None:
            event = events.AnswerEvent(self._answer_index, event)
        self._link.emit(event)

    def _report_progress(self, **changes: Any) -> None:
        if not self.index:  # The first of several replies reports the progress.
            self._link.report_progress(**changes)

    def _raise_if_stopped(self) -> None:
        if self._link.is_stopped():
            raise Cancelled("stopped while the form of the answer was compiled")

    def _on_prefill_progress(self, done: int, total: int) -> None:
        if self._pictures is not None:
            self.meter.encode_s = self._pictures.encoded_s
            self._pictures.end_picture()
        self._report_progress(done=done, total=total, context_used=self._local.session.length)
        self._on_progress()


@contextmanager
def peer_sessions(model: Model, session: Session, n: int) -> Iterator[tuple[list[Session], str]]:
    """Open sessions for ``n`` replies, or for as many as memory has room for.

    Yields the sessions, the given one first, and the reason why they are fewer; empty if they are
    not. The other sessions are closed after the block.
    """
    sessions = [session]
    trouble = ""
    try:
        while len(sessions) < n and not trouble:
            try:
                sessions.append(model.session(peer=session))
            except MemoryPlanError as error:
                trouble = str(error)
        yield sessions, trouble
    finally:
        for peer in sessions[1:]:
            peer.close()


class ParallelTurns:
    """Writes several replies: the first in the engine thread, each other one in its own thread.

    The others begin when the first has read the prompt, which they copy.

    Args:
        link: receives events from all threads.
    """

    def __init__(self, turns: Sequence[LocalTurn], link: EngineLink) -> None:
        self._turns = turns
        self._link = link
        self._with_reply: set[int] = set()
        """Indices of the turns that have a reply."""
        self._threads = [
            threading.Thread(
                target=self._run, args=(turn,), name=f"jalopy-answer-{turn.index}", daemon=True
            )
            for turn in turns[1:]
        ]
        turns[0].on_first_token = self._start_others

    def cancel(self) -> None:
        """Stop all replies; their text so far stays."""
        for turn in self._turns:
            turn.reply.cancel()

    def run(self) -> bool:
        """Write the replies; return whether there is one.

        Raises the exception of the first turn if it has no token.
        """
        if self._turns[0].run():
            self._with_reply.add(0)
        self._start_others()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_POLL_S)
                self._link.report_progress()
        return bool(self._with_reply)

    def _start_others(self) -> None:
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def _run(self, turn: LocalTurn) -> None:
        try:
            if turn.run():
                self._with_reply.add(turn.index)
        except BaseException as error:  # There is one answer less.
            failure = events.GenerationFailed(reason_of(error), error=error)
            self._link.emit(events.AnswerEvent(turn.index, failure))
