"""An open model of this machine: a request becomes ids, and the ids a reply. In the engine's
thread.

Every request brings the whole conversation. What it has in common with the one before keeps its
tokens, and replies keep the ids that were generated, where these mean the same in this vocabulary:
the cache serves as far as it can.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from app.backend.local.context_room import MIN_REPLY_TOKENS, NoRoomError, turns_to_drop
from app.backend.local.edited_reply import edited_ids, text_of
from app.backend.reply import Reply, guard_of, limit_of
from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.program.bundled_model import is_starter
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.reply.starter_fence import fence_of
from app.reply.thinking import Thinking, is_opening_of, tag_ids
from app.session.request import Continuation, Request
from app.text.record import record
from engine.errors import EngineError
from engine.prompt.thinking_mode import ThinkingMode

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.prompt.chat_prompt import ChatPrompt


@record
class ReplyPrefix:
    """The beginning of a reply that is continued."""

    ids: Sequence[int]
    text: str
    """Text of the ids, without a character of which the last id holds only a part."""
    thinking: Thinking | None


@record
class TurnPrompt:
    """The prompt of one reply."""

    ids: Sequence[int]
    """Up to where the reply begins."""
    earlier: ReplyPrefix | None = None
    """Of a reply that is continued; None for a new one."""
    chat: ChatPrompt | None = None
    """The conversation that ends with the message to answer and gets the reply; None for a plain
    text."""
    leaves_loop: bool = False
    """Whether the reply is one that repeated itself."""
    dropped_turns: int = 0
    dropped_tokens: int = 0
    """What had to go for it."""

    @property
    def all_ids(self) -> list[int]:
        """Tokens before the first new one: the prompt and the beginning of the reply."""
        return [*self.ids, *(self.earlier.ids if self.earlier is not None else ())]

    @property
    def opening(self) -> str:
        """The last words of the prompt, which may open a thinking block."""
        if self.chat is not None:
            return self.chat.opening
        return ""


class LocalModel:
    """A model with its session.

    Args:
        chat: its conversation, new.
        least_reply_tokens: room that must be left for a reply.

    Attributes:
        turn_starts: where in the context each turn began when the last reply ended.
        n_tokens: those that the conversation had then.
        adapters: that change the model.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        chat: ChatPrompt,
        settings: Settings,
        least_reply_tokens: int = MIN_REPLY_TOKENS,
    ) -> None:
        self.model = model
        self.session = session
        self.chat = chat
        self.settings = settings
        self._least_reply_tokens = least_reply_tokens
        self._tags: Collection[int] = tag_ids(model.tokenizer.control_texts)
        self._is_fenced = is_starter(model.path)
        self._held: list[PromptMessage] = []
        """What ``chat`` holds, one for each of its messages."""
        self.turn_starts: tuple[int, ...] = ()
        self.n_tokens = 0
        self.adapters: tuple[str, ...] = ()

    def tags(self, with_calls: bool = True) -> Collection[int]:
        """Return the control tokens that are part of the text; those of calls where the model knows
        tools."""
        if with_calls:
            how = self.model.chat_template.call_format
        else:
            how = None
        if how is None:
            return self._tags
        return {*self._tags, *how.marker_ids(self.model.tokenizer)}

    # ---- from a request to ids

    def use_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Tell the model of these tools from the next prompt on."""
        before = self.chat.tools
        self.chat.tools = tools
        if list(tools) != list(before):
            self.chat.tokenise_again()

    def hold(self, said: Sequence[PromptMessage]) -> None:
        """Bring the conversation to what was said.

        Raises EngineError: a message cannot be taken.
        """
        chat = self.chat
        n_same = self.n_held(said)
        if n_same:
            chat.rewind(n_same)
        else:
            n_same = int(bool(said) and said[0].role == SYSTEM)
            chat.start(said[0].text if n_same else None)
        self._held = list(said[:n_same])
        for one in said[n_same:]:
            self._add(one)
            self._held.append(one)

    def n_held(self, said: Sequence[PromptMessage]) -> int:
        """Return how many of the messages are those that are held."""
        return sum(
            1 for _ in takewhile(lambda pair: _is_same(*pair), zip(self._held, said, strict=False))
        )

    def forget(self) -> None:
        """Hold nothing; what the cache has is found again all the same."""
        self._held = []
        self.chat.start(None)

    def _add(self, one: PromptMessage) -> None:
        chat = self.chat
        tokenizer = self.model.tokenizer
        if one.role == USER:
            chat.add_unrendered(one.text)
        elif one.role == TOOL:
            chat.add_results(one.results)
        elif one.role == SYSTEM:
            chat.add_system(one.text)
        elif self._says(one, with_calls=False) or self._says(one, with_calls=True):
            with suppress(EngineError):  # what the template refuses is said with the next prompt
                chat.prompt_ids()  # the reply before keeps its ids
            chat.add_reply(list(one.ids), one.raw, one.calls, one.raw[: one.calls_at].rstrip())
        else:
            chat.add_reply(
                tokenizer.encode(one.text, bos=False, special=False), one.text, one.calls
            )

    def _says(self, reply: PromptMessage, with_calls: bool) -> bool:
        """Whether a reply's tokens are tokens of this vocabulary: they say here what they said
        there."""
        tokenizer = self.model.tokenizer
        if not reply.ids or max(reply.ids) >= tokenizer.vocab_size:
            return False
        said = text_of(tokenizer, reply.ids, self.tags(with_calls))
        # What the engine held back last may be missing on either side.
        return said.startswith(reply.raw) or (bool(said) and reply.raw.startswith(said))

    def prompt(self, request: Request) -> TurnPrompt:
        """Return what a request is as ids.

        Raises EngineError: the template refuses it; Refusal: it holds no token.
        """
        if request.plain is not None:
            ids = list(self.model.tokenizer.encode(request.plain))
            if not ids:
                raise Refusal("the prompt holds no token (give some text)")
            return TurnPrompt(ids)
        try:
            if request.continuation is None:
                self.hold(request.messages)
                return TurnPrompt(self.chat.prompt_ids(), chat=self.chat)
            return self._going_on(request.messages, request.continuation)
        except BaseException:
            self.forget()
            raise

    def prompt_with_room(self, request: Request) -> TurnPrompt:
        """Return the same; the oldest turns go until it fits.

        Raises NoRoomError: it does not without them either.
        """
        n_ctx = self.session.n_ctx
        is_new = request.continuation is None and request.plain is None
        if is_new:
            least_free = max(1, min(self._least_reply_tokens, n_ctx // 8))
        else:
            least_free = 1
        n_turns = n_tokens = 0
        while True:
            prompt = self.prompt(request.without(n_turns))
            needed = len(prompt.all_ids) + least_free
            if needed <= n_ctx:
                break
            if prompt.chat is not None:
                starts = self.chat.turn_starts()
            else:
                starts = []
            alone = needed - (starts[-1] - starts[0] if starts else 0)
            n_more = turns_to_drop(starts, needed - least_free, n_ctx, least_free)
            if alone > n_ctx or not n_more:
                raise NoRoomError(alone)
            n_turns = n_turns + n_more
            n_tokens = n_tokens + starts[n_more] - starts[0]
        # What was dropped stays dropped, whatever becomes of the turn that needed its room.
        self.n_tokens -= n_tokens
        self.turn_starts = tuple(start - n_tokens for start in self.turn_starts[n_turns:])
        return replace(prompt, dropped_turns=n_turns, dropped_tokens=n_tokens)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let other prompts be made meanwhile; the conversation keeps its tokens."""
        saved = self.chat.save()
        held = self._held
        try:
            yield
        finally:
            self.chat.restore(saved)
            self._held = held

    def _going_on(self, said: Sequence[PromptMessage], begun: Continuation) -> TurnPrompt:
        self.hold([*said, begun.reply])
        taken = self.chat.take_reply()
        self._held.pop()
        ids = taken.ids
        tags = self.tags(bool(self.chat.tools))
        with self._thinking_as_in(taken.text, begun.thinking):
            prompt_ids = self.chat.prompt_ids()
            opening = self.chat.opening
        if begun.edited is not None:
            ids = tuple(edited_ids(self.model.tokenizer, ids, begun.edited, opening, tags))
        earlier = ReplyPrefix(ids, text_of(self.model.tokenizer, ids, tags), begun.thinking)
        return TurnPrompt(prompt_ids, earlier, self.chat, begun.is_loop)

    @contextmanager
    def _thinking_as_in(self, reply: str, thinking: Thinking | None) -> Iterator[None]:
        """Open the prompt as it was for a reply that goes on, however much the model shall think
        from now on."""
        chosen = self.chat.thinking
        chat = self.chat
        try:
            for mode in (chosen, ThinkingMode(), ThinkingMode(True), ThinkingMode(False), chosen):
                chat.thinking = mode
                chat.prompt_ids()
                if is_opening_of(reply, chat.opening, thinking is not None):
                    break
            yield
        finally:
            chat.thinking = chosen

    # ---- from ids to a reply

    def fence(self, prompt: TurnPrompt) -> Any:
        """Return what holds the bundled model to what its training has for a question; None for any
        other model."""
        if prompt.earlier is not None:
            begun = prompt.earlier.ids
        else:
            begun = ()
        if self._is_fenced:
            return fence_of(self.model, prompt.chat, begun)
        return None

    def reply(
        self,
        prompt: TurnPrompt,
        sampling: Any,
        max_tokens: int,
        constraint: Any = None,
        stops: Sequence[str] = (),
        guards: bool = True,
        session: Session | None = None,
        **more: Any,
    ) -> Reply:
        """Return the reply to a prompt, to be iterated over.

        Args:
            stops: texts that end it, other than those of the template.
            guards: whether one that repeats itself may be ended.
            session: that computes it in place of the model's own.
            more: fields of ``Reply``.
        """
        chat = prompt.chat
        tokenizer = self.model.tokenizer
        if prompt.earlier is not None:
            begun = prompt.earlier.ids
        else:
            begun = ()
        more.setdefault("spelled", self.tags(bool(self.chat.tools)))
        return Reply(
            session if session is not None else self.session,
            prompt.all_ids,
            sampling,
            max_tokens=max_tokens,
            stop=(*(chat.stops if chat is not None else ()), *stops),
            prefix_ids=begun,
            limit=limit_of(chat, tokenizer, more["spelled"], begun),
            turns=chat.turns() if chat is not None else (),
            guess=self.settings.guess_ahead != "off",
            constraint=constraint,
            guard=guard_of(self.settings, tokenizer, constraint) if guards else None,
            **more,
        )

    def note_reply(self, reply: PromptMessage) -> None:
        """The conversation has this reply now; the next request may have it as ``text`` alone."""
        self._held.append(reply)
        self.chat.add_reply(
            list(reply.ids), reply.raw, reply.calls, reply.raw[: reply.calls_at].rstrip()
        )

    def note_size(self, n_tokens: int) -> None:
        """The conversation has so many tokens now."""
        self.turn_starts = tuple(self.chat.turn_starts())
        self.n_tokens = n_tokens


def _is_same(held: PromptMessage, said: PromptMessage) -> bool:
    """Whether a message is what it was; clients of the API send replies without their ids, and may
    trim them."""
    if (held.role, held.calls, held.results) != (said.role, said.calls, said.results):
        return False
    if held.role != ASSISTANT:
        return held.text == said.text
    if held.ids and said.ids:
        return (held.ids, held.raw) == (said.ids, said.raw)
    return held.text.strip() == said.text.strip()
