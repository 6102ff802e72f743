"""One prompt and its reply, told in events; and several replies to one prompt, computed
together."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.backend.engine_link import EngineLink
from app.backend.engine_outbox import WrittenReply
from app.backend.local.model import LocalModel, ReplyPrefix, TurnPrompt
from app.backend.options import ChatOptions
from app.backend.reply_text import ReplyEmitter
from app.backend.status import Activity
from app.conversations.conversation import ASSISTANT, Ending, PromptMessage
from app.program.refusals import Refusal
from app.session import events
from app.session.events import reason_of
from engine.errors import Cancelled, MemoryPlanError
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.tools.calls import ToolCall

if TYPE_CHECKING:
    from engine import Model, Sampling, Session
    from engine.prompt.tools.split import CallSplitter

_LOOK_S = 0.1
_LEAST_AGAINST_LOOPS = {"repeat_penalty": 1.15, "repeat_window": 64, "dry_multiplier": 0.8}
"""Least values for a reply that goes on after it repeated itself: DRY against the unit, the penalty
against its words. SmolLM2 135M fell into the next loop with 1.1, and into nonsense with 1.2 over
256 tokens."""


def _less_repetitive(sampling: Sampling) -> Sampling:
    """Return the same sampling with penalties on repetition, or with its own where they are
    stronger."""
    least = _LEAST_AGAINST_LOOPS
    return replace(sampling, **{name: max(least[name], getattr(sampling, name)) for name in least})


def _unlike_others(sampling: Sampling, at: int) -> Sampling:
    """Return the sampling of one of several replies, with a seed of its own.

    Raises Refusal: they would be alike.
    """
    if sampling.temperature <= 0:
        raise Refusal(
            "at temperature 0 all answers are the same (/set temperature 0.7 makes them differ)"
        )
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=sampling.seed + at)


class LocalTurn:
    """One prompt and its reply.

    Args:
        on_progress: called after every token and every block of the prompt.
        calls: takes calls of tools out of the answer; None where the model knows no tools.
        at: place among several replies that are written together, from 0 on; None for the only one.
        session: that computes it in place of the model's own.

    Attributes:
        on_begun: called when the prompt is read and the first token is there.
    """

    def __init__(
        self,
        link: EngineLink,
        local: LocalModel,
        prompt: TurnPrompt,
        options: ChatOptions,
        on_progress: Callable[[], object],
        calls: CallSplitter | None = None,
        at: int | None = None,
        session: Session | None = None,
    ) -> None:
        self._calls = calls
        self._is_alone = at is None
        self.at = at or 0
        self.on_begun: Callable[[], object] = lambda: None
        self._link = link
        self._local = local
        self.prompt = prompt
        self._earlier = prompt.earlier or ReplyPrefix((), "", None)
        self._on_progress = on_progress
        ids = prompt.all_ids
        model = local.model
        form = options.form
        self._n_unread = len(ids) - local.session.reusable(ids)
        if form is not None and form.form is not None:
            self._constraint = form.constraint(
                model.tokenizer, self._earlier.ids, self._refuse_stopped
            )
        else:
            self._constraint = local.fence(prompt)
        sampling = options.sampling(
            model, prompt.chat.thinking if prompt.chat is not None else ThinkingMode()
        )
        if at is not None:
            sampling = _unlike_others(sampling, at)
        self.reply = local.reply(
            prompt,
            _less_repetitive(sampling) if prompt.leaves_loop else sampling,
            (options.generation or options.settings.sampling).max_tokens,
            self._constraint,
            on_prompt_progress=self._show_progress,
            clock=link.now_s,
            session=session,
        )
        self.meter = self.reply.meter
        if prompt.earlier is not None:
            begun = self._earlier.text
        else:
            begun = None
        thinking = self._earlier.thinking
        self._text = ReplyEmitter(
            self._emit, self.meter, prompt.opening, begun, thinking, calls, options.emits_pieces
        )

    def written(self) -> WrittenReply:
        """Tokens and text of the whole reply so far; any thread may ask."""
        return (*self._earlier.ids, *self.reply.ids), self._earlier.text + self.reply.text

    def run(self) -> bool:
        """Answer; True when there is a reply, whole or partial, that the conversation now holds."""
        try:
            return self._run()
        finally:
            if self._constraint is not None:
                self._constraint.close()

    def _run(self) -> bool:
        chat = self.prompt.chat
        self._step(
            activity=Activity.READING,
            since_s=self.meter.started_s,
            meter=self.meter,
            turn_starts=tuple(chat.turn_starts()) if chat is not None else (),
            total=self._n_unread,
        )
        try:
            for piece in self.reply:
                self.on_begun()
                self._text.push(piece)
                self._step(activity=Activity.WRITING, context_used=self._local.session.length)
                self._on_progress()
        except BaseException as error:
            if not self.reply.ids:
                raise
            self._keep_reply()
            partial_reply = events.GenerationFinished(
                Ending.FAILED, self.meter.figures(), *self.written()
            )
            self._emit(events.GenerationFailed(reason_of(error), partial_reply, error))
            return True
        ending = self.meter.ending
        if ending is Ending.REPEATED:
            self._text.begin_again(self.written()[1])
        if ending is Ending.STOPPED and not self.reply.ids:
            self._emit(events.PromptStopped())
            return False
        self._keep_reply()
        if ending is Ending.COMPLETE:
            calls, calls_at = self._found_calls()
        else:
            calls, calls_at = ((), 0)
        self._emit(
            events.GenerationFinished(
                ending, self.meter.figures(), *self.written(), calls, calls_at
            )
        )
        return True

    def _emit(self, event: events.Event) -> None:
        self._link.emit(event if self._is_alone else events.AnswerEvent(self.at, event))

    def _step(self, **changes: Any) -> None:
        if not self.at:  # the first tells how far they are
            self._link.step(**changes)

    def _found_calls(self) -> tuple[tuple[ToolCall, ...], int]:
        """Return the calls of a whole reply, each with an id, and where in its text they begin."""
        if self._calls is None or not self._calls.calls:
            return (), 0
        calls = tuple(replace(one, call_id=secrets.token_hex(5)[:9]) for one in self._calls.calls)
        return calls, len(self.written()[1]) - self._calls.tail_chars

    def _refuse_stopped(self) -> None:
        if self._link.is_stopped():
            raise Cancelled("stopped while the form of the answer was compiled")

    def _show_progress(self, done: int, total: int) -> None:
        self._step(done=done, total=total, context_used=self._local.session.length)
        self._on_progress()

    def _keep_reply(self) -> None:
        self._text.finish()
        if self.prompt.chat is not None and not self.at:
            ids, text = self.written()
            self._local.note_reply(PromptMessage(ASSISTANT, text, ids=ids, raw=text))


@contextmanager
def peers_of(model: Model, session: Session, n: int) -> Iterator[tuple[list[Session], str]]:
    """Have sessions for n replies, this one first, or as many as memory has room for; and why they
    are fewer."""
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
        for one in sessions[1:]:
            one.close()


class Answers:
    """Writes several replies: the first in the engine's thread, each other in one of its own.

    The others begin when the first has read the prompt, which they copy.

    Args:
        link: takes events of the answers from all threads.
    """

    def __init__(self, turns: Sequence[LocalTurn], link: EngineLink) -> None:
        self._turns = turns
        self._link = link
        self._kept: set[int] = set()
        self._threads = [
            threading.Thread(
                target=self._run, args=(turn,), name=f"jalopy-answer-{turn.at}", daemon=True
            )
            for turn in turns[1:]
        ]
        turns[0].on_begun = self._begin_others

    def cancel(self) -> None:
        """Stop all; what is there stays."""
        for turn in self._turns:
            turn.reply.cancel()

    def run(self) -> bool:
        """Answer; True when there is a reply.

        Raises whatever the first does before it has a token.
        """
        if self._turns[0].run():
            self._kept.add(0)
        self._begin_others()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                self._link.step()
        return bool(self._kept)

    def _begin_others(self) -> None:
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def _run(self, turn: LocalTurn) -> None:
        try:
            if turn.run():
                self._kept.add(turn.at)
        except BaseException as error:  # it is one answer less
            self._link.emit(
                events.AnswerEvent(turn.at, events.GenerationFailed(reason_of(error), error=error))
            )
