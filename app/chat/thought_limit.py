"""A limit on what a model thinks before it answers: when its tokens are used up, the thought is ended for the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from app.conversations.thinking import ThinkingSplitter
from app.text.record import record
from engine.prompt.thought_markers import ThoughtMarker, opened_by

if TYPE_CHECKING:
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.tokenizer import Tokenizer


@record
class ThoughtEnd:
    """Tokens that end a thought and begin the answer, and their text."""

    ids: tuple[int, ...]
    text: str


class ThoughtLimit:
    """Follows one reply and says when its thought is to end.

    Args:
        budget_tokens: limit on the thought, in tokens.
        opened: marker of a thought that the prompt has opened; None for none.
        spelled: control tokens that are part of the text.
        earlier: the beginning of a reply that is continued.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        budget_tokens: int,
        opened: ThoughtMarker | None = None,
        spelled: Collection[int] = (),
        earlier: Iterable[int] = (),
    ) -> None:
        self._tokenizer, self._budget_tokens = tokenizer, budget_tokens
        self._stream, self._splitter = tokenizer.stream(spelled), ThinkingSplitter(opened)
        self._n_tokens = self.n_chars = 0
        self._was_ended = False
        for token_id in earlier:
            self.note(token_id)
        self.n_chars = 0

    def note(self, token_id: int) -> None:
        """The reply has another token; ``n_chars`` is how many characters those noted so far say."""
        text = self._stream.push(token_id)
        self.n_chars += len(text)
        self._splitter.push(text)
        self._n_tokens += 1

    @property
    def is_used_up(self) -> bool:
        """Whether the thought is to end here: it has had its tokens, and the last one ends no character's midst."""
        is_long = self._n_tokens >= self._budget_tokens and not self._was_ended
        return is_long and self._splitter.is_open and not self._stream.is_within_character

    def end(self) -> ThoughtEnd | None:
        """Return what ends the thought if it is to end here; only once."""
        marker = self._splitter.marker
        if marker is None or not self.is_used_up:
            return None
        self._was_ended = True
        ids = tuple(self._tokenizer.encode(marker.end, bos=False, special=True))
        return ThoughtEnd(ids, marker.end)


def limit_of(
    chat: ChatPrompt | None, tokenizer: Tokenizer, spelled: Collection[int], begun: Iterable[int] = ()
) -> ThoughtLimit | None:
    """Return the limit that a conversation's next reply has, behind what a continued one has of it; None for none."""
    budget = chat.thought_budget_tokens if chat is not None else None
    if chat is None or budget is None:
        return None
    return ThoughtLimit(tokenizer, budget, opened_by(chat.opening), spelled, begun)
