"""One request in the engine's thread: from the prompt to the last piece of its reply."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from app.chat.form_constraint import FormConstraint, Forms
from app.chat.reply import Reply, limit_of
from app.chat.saved_states import SavedStates
from app.conversations.thinking import ThinkingSplitter, is_opening_of
from app.server.answer_form import call_form
from app.server.api_error import ApiError, unsupported
from app.server.conversation import ServedConversation
from app.server.job import Begun, Ended, Job, Piece, TokenChance
from app.server.order import Order
from app.server.tools import Tools
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.thought_markers import opened_by
from engine.prompt.tools.calls import ToolCall
from engine.prompt.tools.formats import CallFormat
from engine.prompt.tools.split import CallSplitter, Told

if TYPE_CHECKING:
    from engine import Model, Sampling, Session

_REASONS = {"stop": "stop", "length": "length", "context": "length"}


@dataclass(eq=False)
class Answering:
    """How requests are answered with one model."""

    model: Model
    session: Session
    """Its cache decides what of a prompt must be read."""
    conversation: ServedConversation
    sampling: Sampling
    """For requests that set nothing."""
    thinking: ThinkingMode
    """The same."""
    max_tokens: int
    """The same; 0 for no limit but the context."""
    tags: Collection[int]
    """Control tokens that are part of the text."""
    guesses_ahead: bool
    """Compute what repeats several tokens at a time."""
    between: Callable[[], object]
    """Called between two steps of the computation."""
    states: SavedStates
    """Bring back what was read before."""

    def __post_init__(self) -> None:
        self._forms = Forms(self.model.tokenizer)

    def answer(self, job: Job) -> Ended:
        """Compute the reply and tell its pieces.

        Raises:
            ApiError: the prompt cannot be used; nothing was computed.
            Exception: whatever the engine raises.
        """
        order = job.order
        how = self._call_format(order.tools) if order.tools is not None else None
        begun = self.model.tokenizer.encode(order.begun, bos=False, special=False) if order.begun else []
        ids = [*self._prompt_ids(order), *begun]
        n_ctx = self.session.n_ctx
        if len(ids) >= n_ctx:
            raise ApiError(
                f"the prompt has {len(ids)} tokens, but the context holds {n_ctx}, the answer included",
                param="messages" if order.is_chat else "prompt",
                code="context_length_exceeded",
            )
        self.states.bring_back(ids)
        telling = _Telling(job, self.model, opened_by(self._opening) if order.is_chat else None, how)
        reply = Reply(
            self.session,
            ids,
            replace(self.sampling, **dict(order.sampling)),
            max_tokens=order.max_tokens or self.max_tokens,
            stop=(*(self.conversation.chat.stops if order.is_chat else ()), *order.stops),
            spelled=self._spelled(how),
            after=begun,
            limit=limit_of(self.conversation.chat if order.is_chat else None, self.model.tokenizer, self.tags, begun),
            turns=self.conversation.chat.turns() if order.is_chat else (),
            guess=self.guesses_ahead,
            n_logprobs=order.n_logprobs,
            constraint=self._constraint(order, begun, how),
            on_token=telling.note_token,
            on_prompt_progress=self._note_progress,
        )
        job.start(reply)
        job.tell(Begun())
        for text in reply:
            telling.push(text)
            self.between()
        telling.finish()
        meter = reply.meter
        reason = _REASONS.get(meter.finish_reason, "cancelled")
        if order.is_chat and reason != "cancelled":
            before_calls = reply.text[: len(reply.text) - telling.tail_chars].rstrip()
            self.conversation.note_reply(
                [*begun, *reply.ids],
                order.begun + reply.text,
                order.begun + telling.answer,
                telling.calls,
                order.begun + before_calls,
            )
        if telling.calls and reason == "stop":
            reason = "tool_calls"
        return Ended(
            reason, len(ids), meter.reused_tokens, meter.tokens, telling.n_thought, meter.prefill_s, meter.generating_s
        )

    def _constraint(self, order: Order, begun: Sequence[int], how: CallFormat | None) -> FormConstraint | None:
        """Return the form of the reply, behind what a continued one has of it."""
        form = order.form
        if order.tools is not None and order.tools.must and how is not None:
            form = call_form(self.model.tokenizer, order.tools, how)
        return self._forms.constraint(form, begun) if form is not None else None

    def _note_progress(self, done: int, total: int) -> None:
        self.between()

    def _call_format(self, tools: Tools) -> CallFormat:
        how: CallFormat | None = self.model.chat_template.call_format
        if how is None:
            raise unsupported("tools", "cannot be used: this model's chat template has none (serve another model)")
        return how

    def _spelled(self, how: CallFormat | None) -> Collection[int]:
        """Control tokens whose text tells thoughts and calls."""
        return self.tags if how is None else {*self.tags, *how.marker_ids(self.model.tokenizer)}

    @property
    def _opening(self) -> str:
        return self.conversation.chat.opening

    def _prompt_ids(self, order: Order) -> list[int]:
        if order.is_chat:
            thinking = self.thinking if order.thinking is None else ThinkingMode.parse(order.thinking)
            if order.form is not None or (order.tools is not None and order.tools.must):
                thinking = ThinkingMode(False)  # the form is that of the whole reply
            tools = order.tools.items if order.tools is not None else ()
            ids = self.conversation.prompt_ids(order.messages, thinking, tools)
            if not is_opening_of(order.begun, self._opening, has_thought=False):
                return self.conversation.prompt_ids(order.messages, ThinkingMode(False), tools)
            return ids
        if isinstance(order.prompt, str):
            ids = list(self.model.tokenizer.encode(order.prompt))
        else:
            ids = list(order.prompt)
        if not ids:
            raise ApiError("prompt holds no token", param="prompt", code="invalid_value")
        if max(ids) >= self.model.tokenizer.vocab_size:
            most = self.model.tokenizer.vocab_size - 1
            raise ApiError(f"prompt: token ids must be 0 to {most}", param="prompt", code="invalid_value")
        return ids


class _Telling:
    """Tells a reply as clients take it: thought, answer and calls apart, each token's chances with its text."""

    def __init__(self, job: Job, model: Model, opened: Any, how: CallFormat | None) -> None:
        self._job, self._tokenizer = job, model.tokenizer
        self._tools = job.order.tools
        self._calls = CallSplitter(how, self._tools.items) if how is not None and self._tools is not None else None
        self.calls: list[ToolCall] = []
        """That were told."""
        # A continued text is told as it is, whatever tags stand in it.
        self._splitter = ThinkingSplitter(opened) if job.order.is_chat else None
        if self._splitter is not None:
            self._splitter.push(job.order.begun)
        self._pending: list[TokenChance] = []
        """Of tokens whose text is not told yet: it may be a tag's beginning, or a stop string's."""
        self._answer: list[str] = []
        self.n_thought = 0
        """Tokens of the thought."""

    @property
    def answer(self) -> str:
        """The answer so far."""
        return "".join(self._answer)

    @property
    def tail_chars(self) -> int:
        """Characters of the reply from its first call on."""
        return self._calls.tail_chars if self._calls is not None and self.calls else 0

    @property
    def _is_thinking(self) -> bool:
        return self._splitter is not None and self._splitter.is_thinking

    def note_token(self, generated: Any) -> None:
        """The reply has another token; its text follows."""
        self.n_thought += self._is_thinking
        if generated.logprobs is not None:
            chances = generated.logprobs
            top = tuple(self._chance(one, logprob) for one, logprob in chances.top)
            self._pending.append(self._chance(generated.token_id, chances.chosen, top))

    def push(self, text: str) -> None:
        """The reply has more text."""
        if self._splitter is None:
            self._tell(text)
            return
        was_thinking = self._is_thinking
        split = self._splitter.push(text)
        if was_thinking or self._is_thinking:
            self._pending.clear()  # only the answer's tokens are told
        self._tell(split.answer, split.thought)

    def finish(self) -> None:
        """The reply has ended: tell what was held back. Tokens without text by now belong to a stop string."""
        if self._splitter is not None:
            rest = self._splitter.flush()
            self._tell(rest.answer, rest.thought, is_last=True)

    def _tell(self, answer: str, thought: str = "", is_last: bool = False) -> None:
        calls: tuple[ToolCall, ...] = ()
        if self._calls is not None:
            told, rest = self._calls.push(answer), self._calls.flush() if is_last else Told()
            answer, calls = told.text + rest.text, self._named(told.calls + rest.calls)
        if not answer and not thought and not calls:
            return
        self._answer.append(answer)
        chances = tuple(self._pending) if answer else ()
        if answer or calls:
            self._pending.clear()
        self._job.tell(Piece(answer, thought, chances, calls))

    def _named(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the calls that are told, each with an id."""
        most = 1 - len(self.calls) if self._tools is not None and self._tools.takes_one else len(calls)
        told = tuple(replace(one, call_id=secrets.token_hex(5)[:9]) for one in calls[:most])
        self.calls += told
        return told

    def _chance(self, token_id: int, logprob: float, top: tuple[TokenChance, ...] = ()) -> TokenChance:
        raw = self._tokenizer.token_bytes(token_id)
        text = raw.decode("utf-8", "replace") if raw else self._tokenizer.token_text(token_id)
        return TokenChance(text, raw, logprob, top)
