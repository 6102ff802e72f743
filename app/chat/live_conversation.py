"""The conversation in the context, in the engine's thread: its turns as tokens, and what a turn begins from.

Whatever a turn replaces or drops happens here, and is undone here where no reply comes of it. Saved turns keep the ids
that were generated, where these mean the same in this vocabulary. Emits nothing and knows no screen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from app.chat.commands import AnsweredCalls, Ask, Command, Continue, ContinueEdited
from app.chat.context_room import MIN_REPLY_TOKENS, EarlierPart, NoRoomError, TurnPrompt, make_room
from app.chat.events import PromptWeighed
from app.conversations.conversation import PastTurn
from app.conversations.thinking import Thinking, answer_start, is_opening_of, tag_ids
from app.program.refusals import Refusal
from app.text.clean_text import TextCleaner
from engine.errors import EngineError
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.thought_markers import opened_by

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.prompt.chat_prompt import ChatPrompt, SavedChat
    from engine.tokenizer import Tokenizer


class LiveConversation:
    """Turns of one model. ``least_reply_tokens``: room that must be left for a reply."""

    def __init__(
        self, model: Model, session: Session, chat: ChatPrompt, least_reply_tokens: int = MIN_REPLY_TOKENS
    ) -> None:
        self._least_reply_tokens = least_reply_tokens
        self._model, self._session, self.chat = model, session, chat
        self._tags: Collection[int] = tag_ids(model.tokenizer.control_texts)
        self._n_dropped = 0
        """Turns at the conversation's beginning that the context no longer contains."""
        self._before: tuple[SavedChat, int] | None = None
        """The conversation before the running turn, and its tokens."""
        self.turn_starts: tuple[int, ...] = ()
        """Where each turn began when the last turn ended."""
        self.n_tokens = 0
        """Those that the conversation had then."""

    @property
    def tags(self) -> Collection[int]:
        """Control tokens that are part of the text."""
        return self._tags_of_calls() if self.chat.tools else self._tags

    def _tags_of_calls(self) -> Collection[int]:
        """The same, with those of calls, where the model knows tools."""
        how = self._model.chat_template.call_format
        return self._tags if how is None else {*self._tags, *how.marker_ids(self._model.tokenizer)}

    def start(self, system: str | None, n_dropped: int = 0) -> None:
        """Begin again, or after ``n_dropped`` turns that the context no longer contains."""
        self.chat.start(system)
        self.turn_starts, self.n_tokens, self._n_dropped = (), 0, n_dropped

    def take_up(self, turns: Sequence[PastTurn]) -> list[int]:
        """Take in what was said since the start, in this model's tokens; returns what the next prompt begins with.

        What the template refuses stands there all the same: turns count here as on the screen, and it is the next
        prompt that is refused, until the user changes the message.
        """
        chat, tokenizer, is_refused = self.chat, self._model.tokenizer, False
        try:
            for turn in turns:
                if turn.results:
                    chat.add_results(turn.results)
                else:
                    chat.add_unrendered(turn.question)
                is_refused = is_refused or not _renders(chat)
                if _says(tokenizer, turn, self._tags) or _says(tokenizer, turn, self._tags_of_calls()):
                    chat.add_reply(list(turn.ids), turn.raw, turn.calls, turn.raw[: turn.calls_at].rstrip())
                else:
                    chat.add_reply(tokenizer.encode(turn.reply, bos=False, special=False), turn.reply, turn.calls)
            ids = list(self.chat.opening_ids(""))
            self.n_tokens = len(ids)
        finally:
            self.turn_starts = tuple(self.chat.turn_starts())
        return ids

    def begin_turn(self, command: Command) -> TurnPrompt | None:
        """Bring the conversation to where the reply begins; None where there is none. Raises NoRoomError."""
        chat, n_ctx = self.chat, self._session.n_ctx
        self._before = chat.save(), self.n_tokens
        if not isinstance(command, Ask) and (not chat.messages or chat.messages[-1].role != "assistant"):
            return None
        is_continued = isinstance(command, (Continue, ContinueEdited))
        least_free = 1 if is_continued else max(1, min(self._least_reply_tokens, n_ctx // 8))
        prompt, before = make_room(chat, n_ctx, least_free, lambda n: self._build(command, n))
        # What was dropped stays dropped, whatever becomes of the turn that needed its room.
        self._before = before, self.n_tokens - prompt.dropped_tokens
        self._n_dropped += prompt.dropped_turns
        return prompt

    def begin_completion(self, text: str) -> TurnPrompt:
        """Begin with a text that is no part of the conversation. Raises NoRoomError, or Refusal: it holds no token."""
        ids = list(self._model.tokenizer.encode(text))
        if not ids:
            raise Refusal("the prompt holds no token (give some text)")
        if len(ids) >= self._session.n_ctx:
            raise NoRoomError(len(ids) + 1)
        self._before = self.chat.save(), self.n_tokens
        return TurnPrompt(ids)

    def end_turn(self, is_kept: bool) -> None:
        """The turn is over; one that is not kept leaves the conversation as it was before."""
        before, self._before = self._before, None
        if is_kept:
            self.n_tokens = self._session.length
        elif before is not None:
            self.chat.restore(before[0])
            self.n_tokens = before[1]
        self.turn_starts = tuple(self.chat.turn_starts())

    def weigh(self, turn: Ask | ContinueEdited, reusable: Callable[[Sequence[int]], int]) -> PromptWeighed:
        """Find out what a turn would cost; ``reusable``: how many tokens of a prompt need not be computed."""
        saved = self.chat.save()
        try:
            ids = self._build(turn, 0).all_ids
        finally:
            self.chat.restore(saved)
        kept = reusable(ids)
        return PromptWeighed(turn.text, kept, self._session.length - kept, len(ids) - kept)

    def _build(self, command: Command, dropped_turns: int) -> TurnPrompt:
        chat, n_dropped = self.chat, self._n_dropped + dropped_turns
        if isinstance(command, Ask):
            if command.keep_turns is not None:
                self._rewind(command.keep_turns - n_dropped)
            if command.answered is not None:
                return self._answer_calls(command.answered)
            return TurnPrompt(chat.add_user(command.text), chat=chat)
        if isinstance(command, ContinueEdited):
            return self._edit_reply(command.text, command.n_turn, n_dropped, command.thinking)
        taken = chat.take_reply()
        if not isinstance(command, Continue):
            return TurnPrompt(chat.prompt_ids(), chat=chat)
        with self._thinking_as_in(taken.text, command.thinking):
            prompt = self._going_on(chat.prompt_ids(), taken.ids, command.thinking)
        return replace(prompt, leaves_loop=command.is_loop)

    def _answer_calls(self, answered: AnsweredCalls) -> TurnPrompt:
        """Let the last reply end with its calls, which was plain text while they had no results, and add these."""
        chat = self.chat
        if chat.messages and chat.messages[-1].role == "assistant":  # else it went for want of room
            taken = chat.take_reply()
            chat.add_reply(list(taken.ids), taken.text, answered.calls, taken.text[: answered.calls_at].rstrip())
        chat.add_results(answered.results)
        return TurnPrompt(chat.prompt_ids(), chat=chat)

    def _edit_reply(self, text: str, n_turn: int, n_dropped: int, thinking: Thinking | None) -> TurnPrompt:
        """Take a reply and all after it out of the conversation; what it is now begins the next one."""
        self._rewind(n_turn + 1 - n_dropped)
        taken = self.chat.take_reply()
        with self._thinking_as_in(taken.text, thinking):
            ids = self.chat.prompt_ids()
        begun = edited_ids(self._model.tokenizer, taken.ids, text, self.chat.opening, self.tags)
        return self._going_on(ids, begun, thinking)

    def _going_on(self, ids: Sequence[int], begun: Sequence[int], thinking: Thinking | None) -> TurnPrompt:
        earlier = EarlierPart(begun, _text_of(self._model.tokenizer, begun, self.tags), thinking)
        return TurnPrompt(ids, earlier, self.chat)

    @contextmanager
    def _thinking_as_in(self, reply: str, thinking: Thinking | None) -> Iterator[None]:
        """Open the prompt as it was for a reply that goes on, however much the model shall think from now on."""
        chat, chosen = self.chat, self.chat.thinking
        try:
            for mode in (chosen, ThinkingMode(), ThinkingMode(True), ThinkingMode(False), chosen):
                chat.thinking = mode
                chat.prompt_ids()
                if is_opening_of(reply, chat.opening, thinking is not None):
                    break
            yield
        finally:
            chat.thinking = chosen

    def _rewind(self, n_turns: int) -> None:
        """Keep the first turns, and the system message."""
        messages = self.chat.messages
        self.chat.rewind(2 * n_turns + (bool(messages) and messages[0].role == "system"))


def _renders(chat: ChatPrompt) -> bool:
    """Whether the template takes the conversation so far."""
    try:
        chat.prompt_ids()
    except EngineError:
        return False
    return True


def _says(tokenizer: Tokenizer, turn: PastTurn, tags: Collection[int]) -> bool:
    """Whether a reply's tokens are tokens of this vocabulary: they say here what they said there.

    A cache that holds them need not read them again then; other tokens for the same text would not be found in it.
    """
    if not turn.ids or max(turn.ids) >= tokenizer.vocab_size:
        return False
    said = _text_of(tokenizer, turn.ids, tags)
    # What the engine held back last may be missing on either side.
    return said.startswith(turn.raw) or (bool(said) and turn.raw.startswith(said))


def _text_of(tokenizer: Tokenizer, ids: Sequence[int], tags: Collection[int]) -> str:
    """Text of a reply's beginning, without a character of which it holds only a part."""
    stream = tokenizer.stream(tags)
    return "".join(stream.push(token_id) for token_id in ids)


# ---- a reply that the user has edited


class _Boundary(NamedTuple):
    """A place between two tokens that is no place inside a character."""

    n_ids: int
    chars: int
    """Characters of the cleaned text before it."""


def edited_ids(
    tokenizer: Tokenizer, ids: Sequence[int], edited: str, opening: str, spelled: Collection[int] = ()
) -> list[int]:
    """Return the ids of a reply, given as it was generated, with its answer or, before any, its thinking edited.

    The exact ids of the beginning that stays, which the cache keeps too, and new ones for what follows.

    ``opening``: the last words of the prompt, which may open a thinking block; ``spelled``: control tokens in the text.
    """
    stream, cleaner = tokenizer.stream(spelled), TextCleaner()
    pieces = [cleaner.push(stream.push(token_id)) for token_id in ids]
    text = "".join([*pieces, cleaner.push(stream.flush()), cleaner.flush()])
    start = answer_start(text, opened_by(opening))
    if edited == text[start:]:
        return list(ids)
    wanted = text[:start] + edited
    kept = [boundary for boundary in _boundaries(tokenizer, ids, spelled, wanted) if boundary.n_ids]
    while kept and kept[-1].chars > start and _is_within_word(wanted, kept[-1].chars):
        kept.pop()
    n_ids, chars = kept[-1] if kept else _Boundary(0, 0)
    rest = wanted[chars:]
    return [*ids[:n_ids], *(tokenizer.encode_text(rest, after_special=False) if rest else ())]


def _boundaries(tokenizer: Tokenizer, ids: Sequence[int], spelled: Collection[int], wanted: str) -> Iterator[_Boundary]:
    """Yield the places up to which the ids say what is wanted."""
    stream, cleaner = tokenizer.stream(spelled), TextCleaner()
    chars = 0
    for n_ids, token_id in enumerate(ids, start=1):
        piece = cleaner.push(stream.push(token_id))
        if not wanted.startswith(piece, chars):
            return
        chars += len(piece)
        if not stream.is_within_character and not cleaner.is_holding:
            yield _Boundary(n_ids, chars)


def _is_within_word(text: str, at: int) -> bool:
    """Whether a place is one where a tokenizer would hardly cut: between two letters or digits."""
    return text[at - 1 : at].isalnum() and text[at : at + 1].isalnum()
