"""Writing the reply to one request in the engine thread, from the prompt to the last piece.

If a reply comes back unchanged in the next request, the tokens that the model wrote are used again,
those of its thought included (``LocalModel``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.backend.local.model import LocalModel, TurnPrompt
from app.backend.local.saved_states import SavedStates
from app.backend.reply import REPEATS
from app.conversations.conversation import ASSISTANT, PromptMessage
from app.forms.constraint import Forms
from app.reply.parser import ParsedPiece, ReplyParser
from app.server.api_error import CONTEXT_EXCEEDED, ApiError, invalid, unsupported
from app.server.completion_request import CompletionRequest
from app.server.line_limit import LineLimit
from app.server.log import log
from app.server.message_order import count_bytes, fit_template
from app.server.reply_form import reply_form
from app.server.reply_task import Finish, PromptAccepted, ReplyPiece, ReplyTask, TokenChance
from app.server.sampling_fields import resolved
from app.session import model_sampling
from app.session.request import Continuation, Request
from engine.prompt.infill import InfillText, infill_prompt
from engine.prompt.thinking import ThinkingMode, ThoughtMarker, opened_by
from engine.prompt.tools.calls import ToolCall
from engine.prompt.tools.formats import CallFormat
from engine.prompt.tools.split import CallSplitter
from engine.tokenizer.pauses import pausing

if TYPE_CHECKING:
    from app.backend.reply import Reply
    from engine import Model, Sampling
    from engine.generation import GeneratedToken
    from engine.sampling.constraint import Constraint

MAX_LOGGED_NOTES = 200
"""Limit on the notes about forms in the log."""
_NEAR_CHARS = 1 << 16
"""Number of characters before and after a gap that are compared."""
_API_REASONS = {"stop": "stop", REPEATS: "stop", "length": "length", "context": "length"}
"""Finish reasons of the API by those of the engine."""


@dataclass(eq=False)
class ReplyWriter:
    """Writes replies with one session of a model."""

    local: LocalModel
    thinking: ThinkingMode
    """Mode for requests that do not set one."""
    between_steps: Callable[[], object]
    """Function to call between two steps of the computation."""
    states: SavedStates
    """Saved states of the KV cache."""
    logged_notes: set[str]
    """Notes about forms that are in the log."""
    suffix_first: bool = False
    """Whether the text after a gap comes first in prompts that fill it."""

    def __post_init__(self) -> None:
        self.sampling = model_sampling.make_sampling(
            self.local.settings.chosen_sampling, self.local.model, self.thinking
        )
        self._forms = Forms(self.local.model.tokenizer)
        self._last_text = ""
        """Last text that was continued, or the one before the last gap."""
        self._last_infill: InfillText | None = None
        """Text whose gap was filled last; None if another text was continued since."""

    def count_cached(self, request: CompletionRequest) -> int:
        """Return how much of a request the session has from the last one, in messages or, for a
        text, in characters or tokens.

        Any thread may call this while no request is answered.
        """
        if request.is_chat:
            return self.local.n_shared(request.messages)
        if not isinstance(request.prompt, str):
            return self.local.session.reusable(request.prompt)
        if request.infill is not None and self._last_infill is not None:
            return _n_common_chars(self._last_infill, request.infill)
        return _n_shared_chars(self._last_text, _text_of(request))

    def write(self, task: ReplyTask) -> Finish:
        """Compute the reply and report its pieces.

        Raises:
            ApiError: The prompt cannot be used; nothing was computed.
            Exception: Any error of the engine.
        """
        request = task.request
        call_format = self._call_format(request)
        self._check_size(request)
        with pausing(task.check):
            prompt, is_cut = self._make_prompt(request)
        self._last_text = _text_of(request)
        self._last_infill = request.infill
        self.local.session.min_moved_tokens = request.moved_tokens

        n_prompt = len(prompt.all_ids)
        if n_prompt >= self.local.session.n_ctx:
            if request.is_chat:
                self.local.clear_messages()
            raise self._too_long(request, f"{n_prompt} tokens")
        if request.counts_prompt_only:
            task.report(PromptAccepted())
            return Finish("length", n_prompt)

        self.states.restore(prompt.all_ids)
        if request.reads_only:
            return self._read_ahead(task, prompt)
        with self._constraining(task, prompt, call_format) as constraint:
            finish = self._generate(task, prompt, call_format, constraint)
        return replace(finish, is_cut=is_cut)

    def _read_ahead(self, task: ReplyTask, prompt: TurnPrompt) -> Finish:
        """Read a prompt ahead of the next request."""
        session = self.local.session

        def check(done: int, total: int) -> None:
            task.check()
            self._after_step()

        task.start(session)
        ids = prompt.all_ids
        task.report(PromptAccepted(len(ids), session.reusable(ids)))
        result = session.prefill(ids, on_progress=check)
        return Finish("length", len(ids), result.reused, prefill_s=result.seconds)

    def _call_format(self, request: CompletionRequest) -> CallFormat | None:
        """Return the model's format of tool calls. None if the reply may have no calls."""
        if request.tools is None or not request.tools.may_call:
            return None
        call_format = self.local.model.chat_template.call_format
        if call_format is None:
            raise unsupported(
                "tools",
                "cannot be used: the chat template of this model has no tools (serve another "
                "model)",
            )
        return call_format

    def _generate(
        self,
        task: ReplyTask,
        prompt: TurnPrompt,
        call_format: CallFormat | None,
        constraint: Constraint | None,
    ) -> Finish:
        request = task.request
        local = self.local
        opened: ThoughtMarker | None = None
        if prompt.chat is not None:
            opened = opened_by(prompt.opening)
        streamer = _ReplyStreamer(task, local.model, opened, call_format)
        sampling = self._sampling(task, prompt)
        max_tokens = request.max_tokens
        if max_tokens is None:
            max_tokens = local.settings.sampling.max_tokens

        reply = local.reply(
            prompt,
            sampling,
            max_tokens,
            constraint,
            request.stop_strings,
            guards=not sampling.ignore_eos,
            visible_control_ids=local.tags(with_calls=call_format is not None),
            n_logprobs=request.n_logprobs,
            on_token=streamer.note_token,
            on_prompt_progress=lambda done, total: self._after_step(),
        )
        task.start(reply)
        n_cached = local.session.reusable(reply.prompt_ids)
        task.report(PromptAccepted(len(reply.prompt_ids), n_cached))
        line_limit = LineLimit(request.min_indent, request.line_limit_s)
        with closing(iter(reply)) as texts:
            for text in texts:
                streamer.push(line_limit.push(text))
                if line_limit.is_reached:
                    break
                self._after_step()
        streamer.push(line_limit.flush())
        streamer.finish(is_cut=reply.meter.finish_reason != "stop")

        if line_limit.is_reached:
            reason = "length"
        else:
            reason = _API_REASONS.get(reply.meter.finish_reason, "cancelled")
        if reason == "cancelled" and task.is_superseded:
            reason = "length"
        if prompt.chat is not None and reason != "cancelled":
            self._remember(request, reply, streamer)

        call_doubt = ""
        stop_string = ""
        if reason == "stop":
            call_doubt = streamer.call_doubt
            if local.session.stop_string in request.stop_strings:
                stop_string = local.session.stop_string
            if streamer.calls:
                reason = "tool_calls"
        return Finish(
            reason,
            prompt_tokens=len(reply.prompt_ids),
            cached_tokens=reply.meter.reused_tokens,
            tokens=reply.meter.tokens,
            thought_tokens=streamer.n_thought_tokens,
            prefill_s=reply.meter.prefill_s,
            decode_s=reply.meter.generating_s,
            stop_string=stop_string,
            n_repeated_chars=reply.n_cut_chars,
            call_doubt=call_doubt,
        )

    def _sampling(self, task: ReplyTask, prompt: TurnPrompt) -> Sampling:
        local = self.local
        sampling = self.sampling
        if prompt.chat is not None:
            sampling = model_sampling.make_sampling(
                local.settings.chosen_sampling, local.model, prompt.chat.thinking
            )
        sampling = replace(sampling, **resolved(task.request.sampling, local.model.tokenizer))
        if sampling.seed is not None:
            answer_index = task.index % task.request.n_answers
            sampling = replace(sampling, seed=sampling.seed + answer_index)
        return sampling

    def _remember(self, request: CompletionRequest, reply: Reply, streamer: _ReplyStreamer) -> None:
        """Remember the tokens of a reply for the next request of the conversation."""
        text = request.reply_prefix + reply.text
        self.local.add_reply(
            PromptMessage(
                ASSISTANT,
                request.reply_prefix + streamer.answer,
                tuple(streamer.calls),
                (),
                (*reply.prefix_ids, *reply.ids),
                text,
                len(text) - streamer.call_chars,
            )
        )

    def _after_step(self) -> None:
        self.between_steps()
        self.states.update()

    @contextmanager
    def _constraining(
        self, task: ReplyTask, prompt: TurnPrompt, call_format: CallFormat | None
    ) -> Iterator[Constraint | None]:
        """Yield the constraint for the reply's form, or the starter model's fence.

        The beginning of a continued reply is accepted already.

        Raises:
            Cancelled: The client has left.
        """
        prefix_ids: tuple[int, ...] = ()
        if prompt.prefix is not None:
            prefix_ids = tuple(prompt.prefix.ids)
        form = reply_form(
            self.local.model.tokenizer, task.request.form, task.request.tools, call_format
        )
        if form is None:
            yield self.local.fence(prompt)
            return

        def wait() -> None:
            task.check()
            self.between_steps()

        constraint = self._forms.constraint(form, prefix_ids, wait)
        for note in constraint.notes:
            if note not in self.logged_notes and len(self.logged_notes) < MAX_LOGGED_NOTES:
                self.logged_notes.add(note)
                log(f"forms cannot enforce this, so it is ignored: {note}")
        try:
            yield constraint
        finally:
            constraint.close()

    def _check_size(self, request: CompletionRequest) -> None:
        """Refuse a prompt that is too long by its bytes, before the long work of tokenizing it."""
        n_ctx = self.local.session.n_ctx
        text = request.reply_prefix
        if request.infill is not None:
            return  # Its texts are cut.
        if isinstance(request.prompt, str):
            text = request.prompt + text
        elif len(request.prompt) >= n_ctx:
            raise self._too_long(request, f"{len(request.prompt)} tokens")

        n_bytes = count_bytes(request.messages) + len(text.encode("utf-8", "replace"))
        if n_bytes > n_ctx * self.local.model.tokenizer.most_token_bytes:
            raise self._too_long(request, f"{n_bytes} bytes")

    def _too_long(self, request: CompletionRequest, size: str) -> ApiError:
        n_ctx = self.local.session.n_ctx
        n_trained = self.local.model.config.context_length
        if n_ctx < n_trained:
            advice = f"jalopy serve --ctx {n_trained} offers more"
        else:
            advice = (
                f"shorten it, or try jalopy serve --ctx N with more than the {n_trained} tokens "
                "that the model was trained for"
            )
        return ApiError(
            f"the prompt has {size}, but prompt and answer must fit in a context of {n_ctx} tokens "
            f"({advice})",
            param="messages" if request.is_chat else "prompt",
            code=CONTEXT_EXCEEDED,
        )

    def _make_prompt(self, request: CompletionRequest) -> tuple[TurnPrompt, bool]:
        """Return the prompt, and whether texts around a gap were cut."""
        if request.is_chat:
            return self._make_chat_prompt(self.local, request), False
        if request.infill is not None:
            return self._make_infill_prompt(request, request.infill)
        return self._make_text_prompt(request), False

    def _make_infill_prompt(
        self, request: CompletionRequest, text: InfillText
    ) -> tuple[TurnPrompt, bool]:
        tokenizer = self.local.model.tokenizer
        missing = tokenizer.infill.missing
        if missing:
            marks = ", ".join(missing)
            if not request.prompt:
                raise ApiError(
                    f"Infill is not supported by this model: it has no tokens for {marks} (serve a "
                    "model for code, such as Qwen2.5-Coder)",
                    501,
                    code="not_supported",
                )
            raise unsupported(
                "suffix",
                f"is not supported by this model: it has no tokens for {marks} (serve a model for "
                "code, such as Qwen2.5-Coder)",
            )
        n_ctx = self.local.session.n_ctx
        max_tokens = request.max_tokens or 0
        prompt = infill_prompt(tokenizer, text, n_ctx, max_tokens, self.suffix_first)
        return TurnPrompt(prompt.ids), prompt.is_cut

    def _make_text_prompt(self, request: CompletionRequest) -> TurnPrompt:
        tokenizer = self.local.model.tokenizer
        if isinstance(request.prompt, str):
            ids = list(tokenizer.encode(request.prompt))
        else:
            ids = list(request.prompt)
        if not ids:
            raise invalid("prompt", "has no tokens")
        if max(ids) >= tokenizer.vocab_size:
            raise invalid("prompt", f"must be token ids from 0 to {tokenizer.vocab_size - 1}")
        return TurnPrompt(ids)

    def count_prompt(self, request: CompletionRequest) -> int:
        """Return the tokens of a conversation with the opening of its reply.

        The count has a conversation of its own, so it may run between two steps of any reply.
        """
        local = self.local
        counted = LocalModel(local.model, local.session, local.model.chat(), local.settings)
        return len(self._make_chat_prompt(counted, request).all_ids)

    def _make_chat_prompt(self, local: LocalModel, request: CompletionRequest) -> TurnPrompt:
        tools = request.tools
        local.chat.thinking = self._thinking_mode(request)
        if tools is not None and local.model.chat_template.call_format is not None:
            local.use_tools(tools.definitions)
        else:
            local.use_tools(())

        continuation: Continuation | None = None
        if request.reply_prefix:
            continuation = Continuation(PromptMessage(ASSISTANT, request.reply_prefix))
        messages = fit_template(request.messages, local.chat.takes)
        return local.prompt(Request(messages, continuation))

    def _thinking_mode(self, request: CompletionRequest) -> ThinkingMode:
        must_call = request.tools is not None and len(request.tools.required_names) > 0
        if request.form is not None or must_call:
            return ThinkingMode(False)  # The form applies to the reply from its first token.
        if request.thinking is None:
            return self.thinking
        return ThinkingMode.parse(request.thinking)


def _text_of(request: CompletionRequest) -> str:
    """Return the text that a request continues, or the one before its gap; "" if it has none."""
    if request.infill is not None:
        return request.infill.prefix + request.infill.line
    if isinstance(request.prompt, str):
        return request.prompt
    return ""


def _n_shared_chars(first: str, second: str) -> int:
    """Return the length of the common beginning of two texts."""
    n_shared = 0
    n_most = min(len(first), len(second))
    while n_shared < n_most:
        middle = (n_shared + n_most + 1) // 2
        if first.startswith(second[:middle]):
            n_shared = middle
        else:
            n_most = middle - 1
    return n_shared


def _n_common_chars(first: InfillText, second: InfillText) -> int:
    """Return the number of characters of the lines that two texts have in common near their gaps.
    They may begin at different lines of the same file."""
    return sum(map(len, _lines_near_gap(first) & _lines_near_gap(second)))


def _lines_near_gap(text: InfillText) -> set[str]:
    near = text.prefix[-_NEAR_CHARS:] + text.line + text.suffix[:_NEAR_CHARS]
    return set(near.splitlines())


class _ReplyStreamer:
    """Sends the pieces of a reply to the client: thought, answer and calls apart, each token's
    chances with its text."""

    def __init__(
        self,
        task: ReplyTask,
        model: Model,
        opened: ThoughtMarker | None,
        call_format: CallFormat | None,
    ) -> None:
        self._task = task
        self._tokenizer = model.tokenizer
        self._tools = task.request.tools
        call_splitter: CallSplitter | None = None
        if call_format is not None and self._tools is not None:
            # In a reply with a form, text that looks like a call is part of the form.
            has_form = task.request.form is not None
            call_splitter = CallSplitter(call_format, self._tools.definitions, only_first=has_form)
        # Tags in a continued text are text.
        self._parser = ReplyParser(
            opened,
            call_splitter,
            has_thoughts=task.request.is_chat,
            prefix=task.request.reply_prefix,
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

    def finish(self, is_cut: bool) -> None:
        """Send the text that was held back.

        Tokens that have no text by now belong to a stop string.

        Args:
            is_cut: Whether something other than the model ended the reply.
        """
        self._send(self._parser.finish(is_cut))

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
        self._task.report(ReplyPiece(piece.answer, piece.thought, chances, calls))

    def _with_ids(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the calls that the request allows, each with an id."""
        if self._tools is not None and self._tools.single_call:
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
