"""One request in the engine's thread: from the prompt to the last piece of its reply.

A reply that comes back word for word keeps the tokens that the model wrote, its thought included
(``LocalModel``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.backend.local.model import LocalModel, TurnPrompt
from app.backend.local.saved_states import SavedStates
from app.backend.reply import REPEATS
from app.conversations.conversation import ASSISTANT, PromptMessage
from app.forms.constraint import Forms
from app.reply.parser import ParsedPiece, ReplyParser
from app.server.api_error import ApiError, invalid, unsupported
from app.server.completion_request import CompletionRequest
from app.server.form_fields import reply_form
from app.server.log import log
from app.server.message_order import as_taken, n_bytes_of
from app.server.reply_task import Finish, Job, PromptTaken, ReplyPiece, TokenChance
from app.server.sampling_fields import resolved
from app.session import samplers
from app.session.request import Continuation, Request
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.thought_markers import ThoughtMarker, opened_by
from engine.prompt.tools.calls import ToolCall
from engine.prompt.tools.formats import CallFormat
from engine.prompt.tools.split import CallSplitter
from engine.tokenizer.pauses import pausing

if TYPE_CHECKING:
    from engine import Model
    from engine.generation import GeneratedToken
    from engine.sampling.constraint import Constraint

MOST_NOTED = 200
"""Limit on the lines about forms in the log."""
_REASONS = {"stop": "stop", REPEATS: "stop", "length": "length", "context": "length"}


@dataclass(eq=False)
class Answering:
    """How requests are answered with one model."""

    local: LocalModel
    thinking: ThinkingMode
    """For requests that set nothing, as the settings of ``local``."""
    between: Callable[[], object]
    """Called between two steps of the computation."""
    states: SavedStates
    """Bring back what was read before."""
    noted: set[str]
    """Lines about forms that are in the log."""

    def __post_init__(self) -> None:
        self.sampling = samplers.make_sampling(self.local.settings, self.local.model, self.thinking)
        self._forms = Forms(self.local.model.tokenizer)

    def n_held(self, order: CompletionRequest) -> int:
        """Return how many of a conversation's messages, or of a text's first tokens, are held since
        the last request.

        Any thread may ask while no request is answered.
        """
        if order.is_chat:
            return self.local.n_held(order.messages)
        if not isinstance(order.prompt, str):
            return self.local.session.reusable(order.prompt)
        return 0

    def answer(self, job: Job) -> Finish:
        """Compute the reply and tell its pieces.

        Raises:
            ApiError: the prompt cannot be used; nothing was computed.
            Exception: whatever the engine raises.
        """
        order = job.order
        local = self.local
        may_call = order.tools is not None and order.tools.may_call
        if may_call:
            how = local.model.chat_template.call_format
        else:
            how = None
        if may_call and how is None:
            raise unsupported(
                "tools", "cannot be used: this model's chat template has none (serve another model)"
            )
        self._refuse_long(order)
        with pausing(job.check):
            prompt = self._prompt(order)
        ids = prompt.all_ids
        if len(ids) >= local.session.n_ctx:
            if order.is_chat:
                local.forget()
            raise self._too_long(order, f"{len(ids)} tokens")
        if order.writes_nothing:
            job.tell(PromptTaken())
            return Finish("length", len(ids))
        self.states.bring_back(ids)
        with self._following(job, prompt, how) as constraint:
            return self._written(job, prompt, how, constraint)

    def _written(
        self, job: Job, prompt: TurnPrompt, how: CallFormat | None, constraint: Constraint | None
    ) -> Finish:
        """Write the reply to a prompt."""
        order = job.order
        local = self.local
        chat = prompt.chat
        telling = _ReplyStreamer(
            job, local.model, opened_by(prompt.opening) if chat is not None else None, how
        )
        settings = local.settings
        usual = self.sampling
        if chat is not None:
            usual = samplers.make_sampling(settings, local.model, chat.thinking)
        sampling = replace(usual, **resolved(order.sampling, local.model.tokenizer))
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + job.index % order.n_answers)
        reply = local.reply(
            prompt,
            sampling,
            settings.sampling.max_tokens if order.max_tokens is None else order.max_tokens,
            constraint,
            order.stops,
            guards=not sampling.ignore_eos,
            spelled=local.tags(with_calls=how is not None),
            n_logprobs=order.n_logprobs,
            on_token=telling.note_token,
            on_prompt_progress=lambda done, total: self._step(),
        )
        job.start(reply)
        job.tell(PromptTaken())
        for text in reply:
            telling.push(text)
            self._step()
        telling.finish()
        meter = reply.meter
        reason = _REASONS.get(meter.finish_reason, "cancelled")
        if chat is not None and reason != "cancelled":
            raw = order.begun + reply.text
            calls_at = len(order.begun + reply.text) - telling.call_chars
            ids = (*reply.after, *reply.ids)
            local.note_reply(
                PromptMessage(
                    ASSISTANT,
                    order.begun + telling.answer,
                    tuple(telling.calls),
                    (),
                    ids,
                    raw,
                    calls_at,
                )
            )
        if reason == "stop":
            doubt = telling.call_doubt
        else:
            doubt = ""
        if telling.calls and reason == "stop":
            reason = "tool_calls"
        counts = len(reply.prompt_ids), meter.reused_tokens, meter.tokens, telling.n_thought_tokens
        times = meter.prefill_s, meter.generating_s
        return Finish(reason, *counts, *times, n_repeated_chars=reply.n_cut_chars, call_doubt=doubt)

    def _step(self) -> None:
        """Between two steps of the computation."""
        self.between()
        self.states.note_progress()

    @contextmanager
    def _following(
        self, job: Job, prompt: TurnPrompt, how: CallFormat | None
    ) -> Iterator[Constraint | None]:
        """Follow the reply's form or fence, after what a continued one has of it; ends with a
        client that leaves."""
        if prompt.earlier is not None:
            begun = prompt.earlier.ids
        else:
            begun = ()
        form = reply_form(self.local.model.tokenizer, job.order.form, job.order.tools, how)
        if form is None:
            yield self.local.fence(prompt)
            return

        def waiting() -> None:
            job.check()
            self.between()

        constraint = self._forms.constraint(form, begun, waiting)
        for note in constraint.notes:
            if note not in self.noted and len(self.noted) < MOST_NOTED:
                self.noted.add(note)
                log(f"not followed from now on, since no form can: {note}")
        try:
            yield constraint
        finally:
            constraint.close()

    def _refuse_long(self, order: CompletionRequest) -> None:
        """Refuse a prompt whose bytes alone say that it cannot fit: its tokens would take long to
        find."""
        n_ctx = self.local.session.n_ctx
        text = order.prompt
        if not isinstance(text, str):
            if len(text) >= n_ctx:
                raise self._too_long(order, f"{len(text)} tokens")
            text = ""
        n_bytes = n_bytes_of(order.messages) + len((text + order.begun).encode("utf-8", "replace"))
        if n_bytes > n_ctx * self.local.model.tokenizer.most_token_bytes:
            raise self._too_long(order, f"{n_bytes} bytes")

    def _too_long(self, order: CompletionRequest, size: str) -> ApiError:
        sizes = (
            f"{size}, but the context holds {self.local.session.n_ctx} tokens, the answer included"
        )
        if order.is_chat:
            param = "messages"
        else:
            param = "prompt"
        return ApiError(f"the prompt has {sizes}", param=param, code="context_length_exceeded")

    def _prompt(self, order: CompletionRequest) -> TurnPrompt:
        local = self.local
        if order.is_chat:
            if order.thinking is None:
                thinking = self.thinking
            else:
                thinking = ThinkingMode.parse(order.thinking)
            if order.form is not None or (order.tools is not None and order.tools.must):
                thinking = ThinkingMode(False)  # the form is that of the whole reply
            knows_tools = local.model.chat_template.call_format is not None
            local.chat.thinking = thinking
            local.use_tools(order.tools.items if order.tools is not None and knows_tools else ())
            said = as_taken(order.messages, local.chat.takes)
            return local.prompt(
                Request(
                    said,
                    Continuation(PromptMessage(ASSISTANT, order.begun)) if order.begun else None,
                )
            )
        tokenizer = local.model.tokenizer
        prompt = order.prompt
        ids = list(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        if not ids:
            raise invalid("prompt", "holds no token")
        if max(ids) >= tokenizer.vocab_size:
            raise invalid("prompt", f"must be token ids from 0 to {tokenizer.vocab_size - 1}")
        return TurnPrompt(ids)


class _ReplyStreamer:
    """Sends the pieces of a reply to the client: thought, answer and calls apart, each token's
    chances with its text."""

    def __init__(
        self, job: Job, model: Model, opened: ThoughtMarker | None, call_format: CallFormat | None
    ) -> None:
        self._job = job
        self._tokenizer = model.tokenizer
        self._tools = job.order.tools
        call_splitter: CallSplitter | None = None
        if call_format is not None and self._tools is not None:
            # In a reply with a form, text that looks like a call is part of the form.
            has_form = job.order.form is not None
            call_splitter = CallSplitter(call_format, self._tools.items, only_first=has_form)
        # Tags in a continued text are text.
        self._parser = ReplyParser(
            opened, call_splitter, has_thoughts=job.order.is_chat, prefix=job.order.begun
        )

        self.calls: list[ToolCall] = []
        """Calls that were sent."""
        self.answer = ""
        """Text of the answer that was sent."""
        self.n_thought_tokens = 0
        """Number of tokens in thoughts."""
        self._pending_chances: list[TokenChance] = []
        """Chances of the tokens whose text is held back."""

    @property
    def call_doubt(self) -> str:
        """Reason why text that looks like a call is not one; "" if there is no such text."""
        return self._parser.call_doubt

    @property
    def call_chars(self) -> int:
        """Number of characters from the first call to the end of the reply; 0 without a call."""
        if not self.calls:
            return 0
        return self._parser.call_chars

    def note_token(self, token: GeneratedToken) -> None:
        """Count a token whose text follows."""
        self.n_thought_tokens += self._parser.is_thinking
        if token.logprobs is None:
            return
        top = tuple(self._chance(token_id, logprob) for token_id, logprob in token.logprobs.top)
        self._pending_chances.append(self._chance(token.token_id, token.logprobs.chosen, top))

    def push(self, text: str) -> None:
        """Add text to the reply."""
        was_thinking = self._parser.is_thinking
        piece = self._parser.feed(text)
        if was_thinking or self._parser.is_thinking:
            # Clients get the chances of the answer only.
            self._pending_chances.clear()
        self._send(piece)

    def finish(self) -> None:
        """Send the text that was held back.

        Tokens that have no text by now belong to a stop string.
        """
        self._send(self._parser.finish())

    def _send(self, piece: ParsedPiece) -> None:
        calls = self._with_ids(piece.calls)
        if not (piece.answer or piece.thought or calls):
            return

        self.answer += piece.answer
        chances: tuple[TokenChance, ...] = ()
        if piece.answer:
            chances = tuple(self._pending_chances)
        if piece.answer or calls:
            self._pending_chances.clear()
        self._job.tell(ReplyPiece(piece.answer, piece.thought, chances, calls))

    def _with_ids(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the calls that the request allows, each with an id."""
        if self._tools is not None and self._tools.takes_one:
            calls = calls[: 1 - len(self.calls)]
        calls = tuple(replace(call, call_id=secrets.token_hex(5)[:9]) for call in calls)
        self.calls += calls
        return calls

    def _chance(
        self, token_id: int, logprob: float, top: tuple[TokenChance, ...] = ()
    ) -> TokenChance:
        token_bytes = self._tokenizer.token_bytes(token_id)
        if token_bytes:
            text = token_bytes.decode("utf-8", "replace")
        else:
            text = self._tokenizer.token_text(token_id)
        return TokenChance(text, token_bytes, logprob, top)
