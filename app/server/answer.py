"""One request in the engine's thread: from the prompt to the last piece of its reply.

Each request sends the whole conversation, and the tokens of what stays are kept. A reply that comes back word for word
keeps the tokens that the model wrote, its thought included, so that the cache still holds them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from app.chat import opening
from app.chat.fence import fence_of
from app.chat.form_constraint import Forms
from app.chat.reply import REPEATS, Reply, guard_of, limit_of
from app.chat.saved_states import SavedStates
from app.conversations.thinking import ThinkingSplitter, is_opening_of, tag_ids
from app.program.settings import Settings
from app.server.answer_form import reply_form
from app.server.api_error import ApiError, invalid, unsupported
from app.server.conversation import as_taken, n_bytes_of
from app.server.job import Ended, Job, PromptTaken, ReplyPiece, TokenChance
from app.server.messages import ASSISTANT, SYSTEM, TOOL, USER, Said
from app.server.order import Order
from app.server.sampling_fields import resolved
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.thought_markers import opened_by
from engine.prompt.tools.calls import CallResult, ToolCall
from engine.prompt.tools.formats import CallFormat
from engine.prompt.tools.split import CallSplitter, Told
from engine.tokenizer.pauses import pausing

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.sampling.constraint import Constraint
    from engine.tokenizer import Tokenizer

_REASONS = {"stop": "stop", REPEATS: "stop", "length": "length", "context": "length"}


class ServedConversation:
    """The tokens of the last conversation. Used by the engine's thread alone."""

    def __init__(self, chat: ChatPrompt, tokenizer: Tokenizer) -> None:
        self.chat, self._tokenizer = chat, tokenizer
        self._said: list[Said] = []
        """The messages of ``chat``, as clients have them: a reply without its thought."""

    def prompt_ids(self, said: Sequence[Said], thinking: ThinkingMode, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens up to where the reply begins. Raises EngineError: the template refuses the conversation."""
        said = as_taken(said, self.chat.takes)
        n_same = _n_same(self._said, said)
        try:
            self._keep(said, n_same)
            self.chat.thinking, self.chat.tools = thinking, tools
            return self.chat.prompt_ids()
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """Keep nothing of the conversation."""
        self._said = []
        self.chat.start(None)

    def note_reply(
        self, ids: Sequence[int], calls: Sequence[ToolCall], raw: str, answer: str, before_calls: str
    ) -> None:
        """The conversation has a reply.

        Args:
            raw: the ids decoded, with the thought and the calls.
            answer: what the client has of it.
            before_calls: what stands before the calls, with the thought.
        """
        self.chat.add_reply(list(ids), raw, calls, before_calls if calls else None)
        self._said.append(Said(ASSISTANT, answer, tuple(calls)))

    def _keep(self, said: Sequence[Said], n_same: int) -> None:
        if n_same:
            self.chat.rewind(n_same)
        else:
            self.chat.start(said[0].text if said[0].role == SYSTEM else None)
            n_same = 1 if said[0].role == SYSTEM else 0
        self._said = list(said)
        for one in said[n_same:]:
            if one.role == USER:
                self.chat.add_unrendered(one.text)
            elif one.role == TOOL:
                self.chat.add_results([CallResult(one.name, one.text, one.call_id)])
            elif one.role == SYSTEM:
                self.chat.add_system(one.text)
            else:
                ids = self._tokenizer.encode(one.text, bos=False, special=False)
                self.chat.add_reply(ids, one.text, one.calls)


def _n_same(kept: Sequence[Said], said: Sequence[Said]) -> int:
    """Return how many messages are the same; clients may trim replies."""
    n = 0
    for one, other in zip(kept, said, strict=False):
        is_reply = one.role == other.role == ASSISTANT
        same_text = one.text == other.text or (is_reply and one.text.strip() == other.text.strip())
        if one.role != other.role or not same_text or (one.calls, one.call_id) != (other.calls, other.call_id):
            break
        n += 1
    return n


@dataclass(eq=False)
class Answering:
    """How requests are answered with one model."""

    model: Model
    session: Session
    """Its cache decides what of a prompt must be read."""
    conversation: ServedConversation
    settings: Settings
    """For requests that set nothing."""
    thinking: ThinkingMode
    """The same."""
    between: Callable[[], None]
    """Called between two steps of the computation."""
    states: SavedStates
    """Bring back what was read before."""

    def __post_init__(self) -> None:
        self.sampling = opening.make_sampling(self.settings, self.model, self.thinking)
        self._tags = tag_ids(self.model.tokenizer.control_texts)
        self._forms = Forms(self.model.tokenizer)

    def answer(self, job: Job) -> Ended:
        """Compute the reply and tell its pieces.

        Raises:
            ApiError: the prompt cannot be used; nothing was computed.
            Exception: whatever the engine raises.
        """
        order, tokenizer = job.order, self.model.tokenizer
        may_call = order.tools is not None and order.tools.may_call
        how = self.model.chat_template.call_format if may_call else None
        if may_call and how is None:
            raise unsupported("tools", "cannot be used: this model's chat template has none (serve another model)")
        self._refuse_long(order)
        with pausing(job.check):
            begun = tokenizer.encode(order.begun, bos=False, special=False) if order.begun else []
            ids = [*self._prompt_ids(order), *begun]
        if len(ids) >= self.session.n_ctx:
            if order.is_chat:
                self.conversation.forget()
            raise self._too_long(order, f"{len(ids)} tokens")
        self.states.bring_back(ids)
        with self._following(job, begun, how) as constraint:
            return self._written(job, ids, begun, how, constraint)

    def _written(
        self, job: Job, ids: list[int], begun: list[int], how: CallFormat | None, constraint: Constraint | None
    ) -> Ended:
        """Write the reply to a prompt."""
        order = job.order
        chat, tokenizer = self.conversation.chat if order.is_chat else None, self.model.tokenizer
        telling = _Telling(job, self.model, opened_by(chat.opening) if chat is not None else None, how)
        usual = opening.make_sampling(self.settings, self.model, chat.thinking) if chat is not None else self.sampling
        sampling = replace(usual, **resolved(order.sampling, tokenizer))
        reply = Reply(
            self.session,
            ids,
            sampling,
            max_tokens=self.settings.sampling.max_tokens if order.max_tokens is None else order.max_tokens,
            stop=(*(chat.stops if chat is not None else ()), *order.stops),
            spelled={*self._tags, *(how.marker_ids(tokenizer) if how is not None else ())},
            after=begun,
            limit=limit_of(chat, tokenizer, self._tags, begun),
            turns=chat.turns() if chat is not None else (),
            guess=self.settings.guess_ahead == "on",
            n_logprobs=order.n_logprobs,
            constraint=constraint,
            guard=None if sampling.ignore_eos else guard_of(self.settings, tokenizer, constraint),
            on_token=telling.note_token,
            on_prompt_progress=lambda done, total: self.between(),
        )
        job.start(reply)
        job.tell(PromptTaken())
        for text in reply:
            telling.push(text)
            self.between()
        telling.finish()
        meter = reply.meter
        reason = _REASONS.get(meter.finish_reason, "cancelled")
        if order.is_chat and reason != "cancelled":
            before_calls = reply.text[: len(reply.text) - telling.tail_chars].rstrip()
            texts = (order.begun + text for text in (reply.text, telling.answer, before_calls))
            self.conversation.note_reply([*begun, *reply.ids], telling.calls, *texts)
        doubt = telling.call_doubt if reason == "stop" else ""
        if telling.calls and reason == "stop":
            reason = "tool_calls"
        counts = len(ids), meter.reused_tokens, meter.tokens, telling.n_thought
        times = meter.prefill_s, meter.generating_s
        return Ended(reason, *counts, *times, n_repeated_chars=reply.n_cut_chars, call_doubt=doubt)

    @contextmanager
    def _following(self, job: Job, begun: Sequence[int], how: CallFormat | None) -> Iterator[Constraint | None]:
        """Follow the reply's form or fence, after what a continued one has of it; ends with a client that leaves."""
        form = reply_form(self.model.tokenizer, job.order.form, job.order.tools, how)
        if form is None:
            yield fence_of(self.model, self.conversation.chat if job.order.is_chat else None, begun)
            return

        def waiting() -> None:
            job.check()
            self.between()

        constraint = self._forms.constraint(form, begun, waiting)
        try:
            yield constraint
        finally:
            constraint.close()

    def _refuse_long(self, order: Order) -> None:
        """Refuse a prompt whose bytes alone say that it cannot fit: its tokens would take long to find."""
        given = order.prompt if isinstance(order.prompt, str) else ""
        n_bytes = n_bytes_of(order.messages) + len((given + order.begun).encode("utf-8", "replace"))
        if n_bytes > self.session.n_ctx * self.model.tokenizer.most_token_bytes:
            raise self._too_long(order, f"{n_bytes} bytes")

    def _too_long(self, order: Order, size: str) -> ApiError:
        sizes = f"{size}, but the context holds {self.session.n_ctx} tokens, the answer included"
        param = "messages" if order.is_chat else "prompt"
        return ApiError(f"the prompt has {sizes}", param=param, code="context_length_exceeded")

    def _prompt_ids(self, order: Order) -> list[int]:
        if order.is_chat:
            thinking = self.thinking if order.thinking is None else ThinkingMode.parse(order.thinking)
            if order.form is not None or (order.tools is not None and order.tools.must):
                thinking = ThinkingMode(False)  # the form is that of the whole reply
            knows_tools = self.model.chat_template.call_format is not None
            tools = order.tools.items if order.tools is not None and knows_tools else ()
            ids = self.conversation.prompt_ids(order.messages, thinking, tools)
            if not is_opening_of(order.begun, self.conversation.chat.opening, has_thought=False):
                return self.conversation.prompt_ids(order.messages, ThinkingMode(False), tools)
            return ids
        prompt, vocab_size = order.prompt, self.model.tokenizer.vocab_size
        ids = list(self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        if not ids:
            raise ApiError("prompt holds no token", param="prompt", code="invalid_value")
        if max(ids) >= vocab_size:
            raise invalid("prompt", f"token ids must be 0 to {vocab_size - 1}")
        return ids


class _Telling:
    """Tells a reply as clients take it: thought, answer and calls apart, each token's chances with its text."""

    def __init__(self, job: Job, model: Model, opened: Any, how: CallFormat | None) -> None:
        self._job, self._tokenizer = job, model.tokenizer
        self._tools = job.order.tools
        has_form = job.order.form is not None  # in which what looks like a call is none
        self._calls = (
            CallSplitter(how, self._tools.items, has_form) if how is not None and self._tools is not None else None
        )
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
    def call_doubt(self) -> str:
        """Why what looks like a call is none; "" where nothing does."""
        return self._calls.doubt if self._calls is not None else ""

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
        self._job.tell(ReplyPiece(answer, thought, chances, calls))

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
