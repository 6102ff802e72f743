"""An open model of this machine, in the engine thread: a request becomes ids, and ids a reply.

Every request has the whole conversation. Messages that it shares with the one before keep their
tokens, and replies keep the ids that were generated if these mean the same in this vocabulary, so
the cache serves as far as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from app.backend.local.context_room import MIN_REPLY_TOKENS, NoRoomError, turns_to_drop
from app.backend.local.edited_reply import edited_ids, text_of
from app.backend.local.prompt_pictures import PromptPictures
from app.backend.local.saved_replies import as_written
from app.backend.reply import Reply, guard_of, limit_of
from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.forms.compiler import FormCompiler
from app.program.bundled_model import is_starter
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.reply.starter_fence import fence_of
from app.reply.thinking import Thinking, is_opening_of, tag_ids
from app.session.request import Continuation, Request, named_dates
from app.text.record import record
from engine.errors import EngineError
from engine.prompt.thinking import ThinkingMode

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.prompt.chat_prompt import ChatPrompt


@record
class ReplyPrefix:
    """Beginning of a reply that continues."""

    ids: Sequence[int]
    text: str
    """Text of the ids, without a character of which the last id has only a part."""
    thinking: Thinking | None


@record
class TurnPrompt:
    """Prompt of one reply."""

    ids: Sequence[int]
    """Tokens up to the beginning of the reply."""
    prefix: ReplyPrefix | None = None
    """Beginning of a reply that continues; None for a new one."""
    chat: ChatPrompt | None = None
    """Conversation that ends with the message to answer; None for a plain text."""
    leaves_loop: bool = False
    """Whether the reply has repeated itself."""
    dropped_turns: int = 0
    """Number of turns that were dropped to make room."""
    dropped_tokens: int = 0
    """Number of tokens of these turns."""

    @property
    def all_ids(self) -> list[int]:
        """Tokens before the first new one: the prompt and the beginning of the reply."""
        if self.prefix is None:
            return list(self.ids)
        return [*self.ids, *self.prefix.ids]

    @property
    def opening(self) -> str:
        """Last words of the prompt, which may open a thought."""
        if self.chat is None:
            return ""
        return self.chat.opening


class LocalModel:
    """A model with its session and the conversation that it last had.

    Args:
        chat: new conversation of the model.
        least_reply_tokens: tokens that a prompt must leave free for its reply.

    Attributes:
        turn_starts: positions of the turns in the context after the last reply.
        n_tokens: tokens of the conversation after the last reply.
        adapters: adapters of the model.
        form_compiler: compiles the forms of replies.
        pictures: pictures of the conversation.
        saved_after: returns sequences of tokens that once followed a prompt, up to the end of the
            reply.
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
        self._messages: list[PromptMessage] = []
        """Messages of ``chat``, as requests have them."""
        self.pictures = PromptPictures(model, chat, settings.pictures.detail)
        self._has_pictures = False
        """Whether the conversation has pictures that are prepared for the model."""
        self.turn_starts: tuple[int, ...] = ()
        self.n_tokens = 0
        self.adapters: tuple[str, ...] = ()
        self.form_compiler = FormCompiler(model.tokenizer)
        self.saved_after: Callable[[Sequence[int]], Iterable[Sequence[int]]] = lambda ids: ()

    def tags(self, with_calls: bool = True) -> Collection[int]:
        """Return the control tokens that are part of the text.

        Args:
            with_calls: whether to include those of tool calls.
        """
        call_format = self.model.chat_template.call_format
        if not with_calls or call_format is None:
            return self._tags
        return {*self._tags, *call_format.marker_ids(self.model.tokenizer)}

    # ---- from a request to ids

    def use_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Describe these tools to the model from the next prompt on."""
        previous = self.chat.tools
        self.chat.tools = tools
        if list(tools) != list(previous):
            self.chat.tokenise_again()

    def set_messages(
        self, messages: Sequence[PromptMessage], draft: PromptMessage | None = None
    ) -> None:
        """Change the conversation to these messages.

        Args:
            draft: message whose pictures stay prepared.

        Raises EngineError: the template refuses a message.
        """
        chat = self.chat
        has_own_date = self._is_fenced or self.model.chat_template.names_date
        messages = named_dates(messages, self.settings.date_in_prompt, has_own_date)
        with_pictures = [message for message in messages if message.may_have_pictures]
        if draft is not None and draft.may_have_pictures:
            with_pictures.append(draft)
        if with_pictures or self._has_pictures:
            self.pictures.forget_others(with_pictures)
            self._has_pictures = bool(with_pictures)
        n_same = self.n_shared(messages)
        if n_same:
            chat.rewind(n_same)
        else:
            n_same = int(bool(messages) and messages[0].role == SYSTEM)
            chat.start(messages[0].text if n_same else None)
        self._messages = list(messages[:n_same])
        self._add_all(messages[n_same:])

    @property
    def has_messages(self) -> bool:
        """Whether the conversation has a message or a system prompt."""
        return bool(self._messages)

    def n_shared(self, messages: Sequence[PromptMessage]) -> int:
        """Return the number of messages that the conversation shares with these."""
        pairs = zip(self._messages, messages, strict=False)
        return sum(1 for _ in takewhile(lambda pair: _is_same(*pair), pairs))

    def clear_messages(self) -> None:
        """Remove all messages; the cache stays."""
        self._messages = []
        self.chat.start(None)

    def _add_all(self, messages: Sequence[PromptMessage]) -> None:
        # If the tokens of one reply are not saved, those of later replies are not either.
        may_be_saved = True
        for message in messages:
            written: PromptMessage | None = None
            if message.role == ASSISTANT and not message.ids and may_be_saved:
                written = self._find_saved(message)
                may_be_saved = written is not None
            if written is not None:
                self._add_written(written)
            else:
                self._add(message, is_last=message is messages[-1])
            self._messages.append(message)

    def _find_saved(self, reply: PromptMessage) -> PromptMessage | None:
        """Return a reply with the tokens that the model wrote; None if they are not saved."""
        try:
            prompt_ids = self.chat.prompt_ids()
        except (EngineError, ValueError):  # A conversation may begin with a reply.
            return None
        return as_written(reply, self.saved_after(prompt_ids), self.model, self.chat, self.tags())

    def _add_written(self, reply: PromptMessage) -> None:
        answer = reply.raw[: reply.calls_at].rstrip()
        self.chat.add_reply(list(reply.ids), reply.raw, reply.calls, answer)

    def _add(self, message: PromptMessage, is_last: bool = True) -> None:
        chat = self.chat
        if message.role == USER:
            text = message.text
            if message.may_have_pictures:
                text = self.pictures.placed(message, is_last)
            chat.add_unrendered(text)
        elif message.role == TOOL:
            chat.add_results(message.results)
        elif message.role == SYSTEM:
            chat.add_system(message.text)
        elif self._can_reuse_ids(message):
            with suppress(EngineError):  # The next prompt reports what the template refuses.
                chat.prompt_ids()  # Lets the reply before keep its ids.
            self._add_written(message)
        else:
            ids = self.model.tokenizer.encode(message.text, bos=False, special=False)
            chat.add_reply(ids, message.text, message.calls)

    def _can_reuse_ids(self, reply: PromptMessage) -> bool:
        """Return whether a reply's ids have the same text in this vocabulary."""
        tokenizer = self.model.tokenizer
        if not reply.ids or max(reply.ids) >= tokenizer.vocab_size:
            return False
        for with_calls in (False, True):
            text = text_of(tokenizer, reply.ids, self.tags(with_calls))
            # Either text may lack what the engine held back last.
            if text.startswith(reply.raw) or (text and reply.raw.startswith(text)):
                return True
        return False

    def prompt(self, request: Request) -> TurnPrompt:
        """Return the prompt of a request.

        Raises:
            EngineError: the template refuses the request.
            Refusal: the request has no tokens.
        """
        if request.plain is not None:
            ids = list(self.model.tokenizer.encode(request.plain))
            if not ids:
                raise Refusal("the prompt holds no token (give some text)")
            return TurnPrompt(ids)
        try:
            if request.continuation is not None:
                return self._continuing_prompt(request.messages, request.continuation)
            self.set_messages(request.messages)
            return TurnPrompt(self.chat.prompt_ids(), chat=self.chat)
        except BaseException:
            self.clear_messages()
            raise

    def prompt_with_room(self, request: Request) -> TurnPrompt:
        """Return the prompt of a request, without its oldest turns if it would not fit.

        Raises NoRoomError: it does not fit without them either.
        """
        n_ctx = self.session.n_ctx
        least_free = 1
        if request.continuation is None and request.plain is None:
            least_free = max(1, min(self._least_reply_tokens, n_ctx // 8))
        n_turns = 0
        n_tokens = 0
        while True:
            prompt = self.prompt(request.without(n_turns))
            needed = len(prompt.all_ids) + least_free
            if needed <= n_ctx:
                break
            starts: Sequence[int] = ()
            least_needed = needed
            if prompt.chat is not None:
                starts = self.chat.turn_starts()
            if starts:
                least_needed = needed - (starts[-1] - starts[0])
            n_more = turns_to_drop(starts, needed - least_free, n_ctx, least_free)
            if least_needed > n_ctx or not n_more:
                raise NoRoomError(least_needed)
            n_turns += n_more
            n_tokens += starts[n_more] - starts[0]

        # Dropped turns stay dropped even if this turn gets no reply.
        self.n_tokens -= n_tokens
        self.turn_starts = tuple(start - n_tokens for start in self.turn_starts[n_turns:])
        return replace(prompt, dropped_turns=n_turns, dropped_tokens=n_tokens)

    @contextmanager
    def preserving_messages(self) -> Iterator[None]:
        """Restore the conversation, with its tokens, after the block."""
        chat_state = self.chat.save()
        messages = self._messages
        try:
            yield
        finally:
            self.chat.restore(chat_state)
            self._messages = messages

    def _continuing_prompt(
        self, messages: Sequence[PromptMessage], continuation: Continuation
    ) -> TurnPrompt:
        self.set_messages([*messages, continuation.reply])
        reply = self.chat.take_reply()
        self._messages.pop()
        ids = reply.ids
        tokenizer = self.model.tokenizer
        tags = self.tags(bool(self.chat.tools))
        with self._opened_as_in(reply.text, continuation.thinking):
            prompt_ids = self.chat.prompt_ids()
            opening = self.chat.opening
        if continuation.edited is not None:
            ids = tuple(edited_ids(tokenizer, ids, continuation.edited, opening, tags))
        prefix = ReplyPrefix(ids, text_of(tokenizer, ids, tags), continuation.thinking)
        return TurnPrompt(prompt_ids, prefix, self.chat, continuation.is_loop)

    @contextmanager
    def _opened_as_in(self, reply: str, thinking: Thinking | None) -> Iterator[None]:
        """Set the thinking mode that the prompt of a reply had, for the block."""
        chat = self.chat
        chosen = chat.thinking
        modes = (chosen, ThinkingMode(), ThinkingMode(True), ThinkingMode(False), chosen)
        try:
            for mode in modes:
                chat.thinking = mode
                chat.prompt_ids()
                if is_opening_of(reply, chat.opening, thinking is not None):
                    break
            yield
        finally:
            chat.thinking = chosen

    # ---- from ids to a reply

    def fence(self, prompt: TurnPrompt) -> Any:
        """Return the constraint of the bundled model, which keeps to its training; None for other
        models."""
        if not self._is_fenced:
            return None
        return fence_of(self.model, prompt.chat, _prefix_ids(prompt))

    def reply(
        self,
        prompt: TurnPrompt,
        sampling: Any,
        max_tokens: int,
        constraint: Any = None,
        stops: Sequence[str] = (),
        guards: bool = True,
        session: Session | None = None,
        **fields: Any,
    ) -> Reply:
        """Return the reply to a prompt, which is written while it is iterated over.

        Args:
            stops: texts that end the reply, besides those of the template.
            guards: whether the reply ends if it repeats itself.
            session: session that computes; None for the model's own.
            fields: further fields of ``Reply``.
        """
        tokenizer = self.model.tokenizer
        prefix_ids = _prefix_ids(prompt)
        checkpoint_positions: Collection[int] = ()
        if prompt.chat is not None:
            stops = (*prompt.chat.stops, *stops)
            checkpoint_positions = prompt.chat.checkpoint_positions()
        guard = None
        if guards:
            guard = guard_of(self.settings, tokenizer, constraint)
        fields.setdefault("visible_control_ids", self.tags(bool(self.chat.tools)))
        return Reply(
            session if session is not None else self.session,
            prompt.all_ids,
            sampling,
            max_tokens=max_tokens,
            stop=stops,
            prefix_ids=prefix_ids,
            limit=limit_of(prompt.chat, tokenizer, fields["visible_control_ids"], prefix_ids),
            checkpoint_positions=checkpoint_positions,
            guess=self.settings.guess_ahead != "off",
            constraint=constraint,
            guard=guard,
            **fields,
        )

    def add_reply(self, reply: PromptMessage) -> None:
        """Append a reply to the conversation; the next request may have only its text."""
        self._messages.append(reply)
        self._add_written(reply)

    def set_size(self, n_tokens: int) -> None:
        """Set the number of tokens of the conversation."""
        self.turn_starts = tuple(self.chat.turn_starts())
        self.n_tokens = n_tokens


def _digests(message: PromptMessage) -> list[tuple[str, str]]:
    return [(picture.digest, picture.detail) for picture in message.pictures]


def _prefix_ids(prompt: TurnPrompt) -> Sequence[int]:
    if prompt.prefix is None:
        return ()
    return prompt.prefix.ids


def _is_same(message: PromptMessage, other: PromptMessage) -> bool:
    """Return whether two messages are the same.

    Clients of the API send replies without their ids, and may trim them.
    """
    is_alike = (message.role, message.calls, message.results, _digests(message)) == (
        other.role,
        other.calls,
        other.results,
        _digests(other),
    )
    if not is_alike:
        return False
    if message.role != ASSISTANT:
        return message.text == other.text
    if message.ids and other.ids:
        return (message.ids, message.raw) == (other.ids, other.raw)
    return message.text.strip() == other.text.strip()
