"""One request in the engine's thread: from the prompt to the last piece of its reply."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.chat.form_constraint import FormConstraint, Forms
from app.chat.reply import Reply
from app.chat.thought_limit import ThoughtLimit
from app.conversations.thinking import ThinkingSplitter, is_opening_of
from app.server.api_error import ApiError
from app.server.conversation import ServedConversation
from app.server.job import Begun, Ended, Job, Piece, TokenChance
from app.server.order import Order
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.thought_markers import opened_by

if TYPE_CHECKING:
    from engine import Model, Sampling, Session

_REASONS = {"stop": "stop", "length": "length", "context": "length"}


class Answering:
    """How requests are answered with one model.

    Args:
        model: open.
        session: of the model; its cache decides what of a prompt must be read.
        conversation: of the model.
        sampling: for requests that set nothing.
        thinking: the same.
        max_tokens: the same; 0 for no limit but the context.
        tags: control tokens that are part of the text.
        guesses_ahead: compute what repeats several tokens at a time.
        between: called between two steps of the computation.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        conversation: ServedConversation,
        sampling: Sampling,
        thinking: ThinkingMode,
        max_tokens: int,
        tags: Collection[int],
        guesses_ahead: bool,
        between: Callable[[], object],
    ) -> None:
        self._model, self._session, self._conversation = model, session, conversation
        self.sampling, self._thinking, self._max_tokens = sampling, thinking, max_tokens
        self._tags, self._guesses_ahead, self._between = tags, guesses_ahead, between
        self._forms = Forms(model.tokenizer)

    def answer(self, job: Job) -> Ended:
        """Compute the reply and tell its pieces.

        Raises:
            ApiError: the prompt cannot be used; nothing was computed.
            Exception: whatever the engine raises.
        """
        order = job.order
        begun = self._model.tokenizer.encode(order.begun, bos=False, special=False) if order.begun else []
        ids = [*self._prompt_ids(order), *begun]
        n_ctx = self._session.n_ctx
        if len(ids) >= n_ctx:
            raise ApiError(
                f"the prompt has {len(ids)} tokens, but the context holds {n_ctx}, the answer included",
                param="messages" if order.is_chat else "prompt",
                code="context_length_exceeded",
            )
        telling = _Telling(job, self._model, opened_by(self._opening) if order.is_chat else None)
        reply = Reply(
            self._session,
            ids,
            replace(self.sampling, **dict(order.sampling)),
            max_tokens=order.max_tokens or self._max_tokens,
            stop=(*(self._conversation.chat.stops if order.is_chat else ()), *order.stops),
            spelled=self._tags,
            after=begun,
            limit=self._thought_limit(begun) if order.is_chat else None,
            turns=self._conversation.chat.turns() if order.is_chat else (),
            guess=self._guesses_ahead,
            n_logprobs=order.n_logprobs,
            constraint=self._constraint(order, begun),
            on_token=telling.note_token,
            on_prompt_progress=self._note_progress,
        )
        job.start(reply)
        job.tell(Begun(len(ids)))
        for text in reply:
            telling.push(text)
            self._between()
        telling.finish()
        meter = reply.meter
        reason = _REASONS.get(meter.finish_reason, "cancelled")
        if order.is_chat and reason != "cancelled":
            self._conversation.note_reply([*begun, *reply.ids], order.begun + reply.text, order.begun + telling.answer)
        return Ended(
            reason, len(ids), meter.reused_tokens, meter.tokens, telling.n_thought, meter.prefill_s, meter.generating_s
        )

    def _constraint(self, order: Order, begun: Sequence[int]) -> FormConstraint | None:
        """Return the form of the reply, behind what a continued one has of it."""
        if order.form is None:
            return None
        constraint = self._forms.constraint(order.form)
        for token_id in begun:
            constraint.accept(token_id)
        return constraint

    def _note_progress(self, done: int, total: int) -> None:
        self._between()

    @property
    def _opening(self) -> str:
        return self._conversation.chat.opening

    def _prompt_ids(self, order: Order) -> list[int]:
        if order.is_chat:
            thinking = self._thinking if order.thinking is None else ThinkingMode.parse(order.thinking)
            if order.form is not None:
                thinking = ThinkingMode(False)  # the form is that of the whole reply
            ids = self._conversation.prompt_ids(order.messages, thinking)
            if not is_opening_of(order.begun, self._opening, has_thought=False):
                return self._conversation.prompt_ids(order.messages, ThinkingMode(False))
            return ids
        if isinstance(order.prompt, str):
            ids = list(self._model.tokenizer.encode(order.prompt))
        else:
            ids = list(order.prompt)
        if not ids:
            raise ApiError("prompt holds no token", param="prompt", code="invalid_value")
        if max(ids) >= self._model.tokenizer.vocab_size:
            most = self._model.tokenizer.vocab_size - 1
            raise ApiError(f"prompt: token ids must be 0 to {most}", param="prompt", code="invalid_value")
        return ids

    def _thought_limit(self, begun: Sequence[int]) -> ThoughtLimit | None:
        budget = self._conversation.chat.thought_budget_tokens
        if budget is None:
            return None
        return ThoughtLimit(self._model.tokenizer, budget, opened_by(self._opening), self._tags, begun)


class _Telling:
    """Tells a reply as clients take it: thought and answer apart, each token's chances with its text."""

    def __init__(self, job: Job, model: Model, opened: Any) -> None:
        self._job, self._tokenizer = job, model.tokenizer
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
            self._tell(rest.answer, rest.thought)

    def _tell(self, answer: str, thought: str = "") -> None:
        if not answer and not thought:
            return
        self._answer.append(answer)
        chances = tuple(self._pending) if answer else ()
        if answer:
            self._pending.clear()
        self._job.tell(Piece(answer, thought, chances))

    def _chance(self, token_id: int, logprob: float, top: tuple[TokenChance, ...] = ()) -> TokenChance:
        raw = self._tokenizer.token_bytes(token_id)
        text = raw.decode("utf-8", "replace") if raw else self._tokenizer.token_text(token_id)
        return TokenChance(token_id, text, raw, logprob, top)
