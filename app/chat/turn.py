"""One turn in the engine's thread: a prompt and its reply, or the rest of a reply that was stopped."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from app.chat.context_room import EarlierPart, TurnPrompt
from app.chat.events import GenerationFailed, GenerationFinished, PromptStopped, reason_of
from app.chat.fence import fence_of
from app.chat.options import ChatOptions
from app.chat.reply import Reply, guard_of, limit_of
from app.chat.reply_text import ReplyPieces, ReplyText
from app.chat.status import Activity
from app.chat.wire import Wire, Written
from app.conversations.conversation import Ending
from engine.errors import Cancelled
from engine.prompt.thinking_mode import ThinkingMode

if TYPE_CHECKING:
    from engine import Model, Sampling, Session
    from engine.prompt.tools.calls import ToolCall
    from engine.prompt.tools.split import CallSplitter


_LEAST_AGAINST_LOOPS = {"repeat_penalty": 1.15, "repeat_window": 64, "dry_multiplier": 0.8}
"""Least values for a reply that goes on after it repeated itself: DRY against the unit, the penalty against its words.
SmolLM2 135M fell into the next loop with 1.1, and into nonsense with 1.2 over 256 tokens."""


def _less_repetitive(sampling: Sampling) -> Sampling:
    """Return the same sampling with penalties on repetition, or with its own where they are stronger."""
    least = _LEAST_AGAINST_LOOPS
    return replace(sampling, **{name: max(least[name], getattr(sampling, name)) for name in least})


class EngineTurn:
    """One prompt and its reply.

    Args:
        on_progress: called after every token and every block of the prompt.
        calls: takes calls of tools out of the answer; None where the model knows no tools.
    """

    def __init__(
        self,
        wire: Wire,
        session: Session,
        prompt: TurnPrompt,
        options: ChatOptions,
        on_progress: Callable[[], object],
        spelled: Collection[int] = (),
        calls: CallSplitter | None = None,
    ) -> None:
        self._calls = calls
        self._wire, self._session, self._prompt = wire, session, prompt
        self._earlier = prompt.earlier or EarlierPart((), "", None)
        self._on_progress = on_progress
        self._pieces = ReplyPieces(wire.emit, calls, options.tells_pieces)
        ids = prompt.all_ids
        self._n_unread = len(ids) - session.reusable(ids)
        model = cast("Model", session.model)  # a session knows less of it than who opened it
        form, tokenizer = options.form, model.tokenizer
        chosen = form.constraint(tokenizer, self._earlier.ids, self._refuse_stopped) if form else None
        self._constraint = chosen or fence_of(model, prompt.chat, self._earlier.ids)
        sampling = options.sampling(model, prompt.chat.thinking if prompt.chat is not None else ThinkingMode())
        self.reply = Reply(
            session,
            ids,
            _less_repetitive(sampling) if prompt.leaves_loop else sampling,
            max_tokens=(options.generation or options.settings.sampling).max_tokens,
            stop=prompt.chat.stops if prompt.chat is not None else (),
            after=self._earlier.ids,
            spelled=spelled,
            limit=limit_of(prompt.chat, tokenizer, spelled, self._earlier.ids),
            turns=prompt.chat.turns() if prompt.chat is not None else (),
            guess=options.settings.guess_ahead == "on",
            constraint=self._constraint,
            guard=guard_of(options.settings, tokenizer, self._constraint),
            on_prompt_progress=self._show_progress,
            clock=wire.now_s,
        )
        self.meter = self.reply.meter
        begun = self._earlier.text if prompt.earlier is not None else None
        self._text = ReplyText(wire.emit, self.meter, prompt.opening, begun, self._earlier.thinking, calls)

    def written(self) -> Written:
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
        chat = self._prompt.chat
        self._wire.step(
            activity=Activity.READING,
            since_s=self.meter.started_s,
            meter=self.meter,
            turn_starts=tuple(chat.turn_starts()) if chat is not None else (),
            total=self._n_unread,
        )
        try:
            for piece in self.reply:
                self._text.push(piece)
                self._pieces.tell(piece)  # last: it is saved before it is shown
                self._wire.step(activity=Activity.WRITING, context_used=self._session.length)
                self._on_progress()
        except BaseException as error:
            if not self.reply.ids:
                raise
            self._keep_reply()
            broken_off = GenerationFinished(Ending.FAILED, self.meter.figures(), *self.written())
            self._wire.emit(GenerationFailed(reason_of(error), broken_off, error))
            return True
        ending = self.meter.ending
        if ending is Ending.REPEATED:
            self._text.begin_again(self.written()[1])
        if ending is Ending.STOPPED and not self.reply.ids:
            self._wire.emit(PromptStopped())
            return False
        self._keep_reply()
        calls, calls_at = self._found_calls() if ending is Ending.COMPLETE else ((), 0)
        self._wire.emit(GenerationFinished(ending, self.meter.figures(), *self.written(), calls, calls_at))
        return True

    def _found_calls(self) -> tuple[tuple[ToolCall, ...], int]:
        """Return the calls of a whole reply, each with an id, and where in its text they begin."""
        if self._calls is None or not self._calls.calls:
            return (), 0
        calls = tuple(replace(one, call_id=secrets.token_hex(5)[:9]) for one in self._calls.calls)
        return calls, len(self.written()[1]) - self._calls.tail_chars

    def _refuse_stopped(self) -> None:
        if self._wire.is_stopped():
            raise Cancelled("stopped while the form of the answer was compiled")

    def _show_progress(self, done: int, total: int) -> None:
        self._wire.step(done=done, total=total, context_used=self._session.length)
        self._on_progress()

    def _keep_reply(self) -> None:
        self._text.finish()
        self._pieces.tell("", is_last=True)
        if self._prompt.chat is not None:
            ids, text = self.written()
            self._prompt.chat.add_reply(list(ids), text)
