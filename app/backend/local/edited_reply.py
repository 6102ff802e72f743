"""Ids of a reply that the user edited: those of the unchanged beginning, and new ones after it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from app.reply.thinking import answer_start
from app.text.clean_text import TextCleaner
from engine.prompt.thinking import opened_by

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


def text_of(tokenizer: Tokenizer, ids: Sequence[int], tags: Collection[int]) -> str:
    """Return the text of ids, without a character of which they have only a part."""
    stream = tokenizer.stream(tags)
    return "".join(stream.push(token_id) for token_id in ids)


class _Boundary(NamedTuple):
    """Position between two tokens that is not inside a character."""

    n_ids: int
    chars: int
    """Number of characters of the cleaned text before the position."""


def edited_ids(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    edited: str,
    opening: str,
    visible_control_ids: Collection[int] = (),
) -> list[int]:
    """Return the ids of a reply whose answer was edited, or its thinking if it has no answer.

    The unchanged beginning keeps its exact ids, so the cache keeps it too.

    Args:
        ids: tokens of the reply as they were generated.
        edited: new text of the answer or of the thinking.
        opening: last words of the prompt, which may open a thought.
        visible_control_ids: control tokens that are part of the text.
    """
    stream = tokenizer.stream(visible_control_ids)
    cleaner = TextCleaner()
    pieces = [cleaner.push(stream.push(token_id)) for token_id in ids]
    text = "".join([*pieces, cleaner.push(stream.flush()), cleaner.flush()])
    start = answer_start(text, opened_by(opening))
    if edited == text[start:]:
        return list(ids)
    new_text = text[:start] + edited
    boundaries = [_Boundary(0, 0), *_boundaries(tokenizer, ids, visible_control_ids, new_text)]
    while boundaries[-1].chars > start and _is_within_word(new_text, boundaries[-1].chars):
        boundaries.pop()
    n_ids, chars = boundaries[-1]
    new_ids: Sequence[int] = ()
    if chars < len(new_text):
        new_ids = tokenizer.encode_text(new_text[chars:], after_special=False)
    return [*ids[:n_ids], *new_ids]


def _boundaries(
    tokenizer: Tokenizer, ids: Sequence[int], visible_control_ids: Collection[int], text: str
) -> Iterator[_Boundary]:
    """Yield the boundaries up to which the ids spell the beginning of a text."""
    stream = tokenizer.stream(visible_control_ids)
    cleaner = TextCleaner()
    chars = 0
    for n_ids, token_id in enumerate(ids, start=1):
        piece = cleaner.push(stream.push(token_id))
        if not text.startswith(piece, chars):
            return
        chars += len(piece)
        if not stream.is_within_character and not cleaner.is_holding:
            yield _Boundary(n_ids, chars)


def _is_within_word(text: str, index: int) -> bool:
    """Return whether an index is between two letters or digits, where tokenizers seldom split."""
    return text[index - 1 : index].isalnum() and text[index : index + 1].isalnum()
