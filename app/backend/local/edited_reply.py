"""A reply that the user has edited: the exact ids of the beginning that stays, and new ones for
what follows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from app.reply.thinking import answer_start
from app.text.clean_text import TextCleaner
from engine.prompt.thought_markers import opened_by

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


def text_of(tokenizer: Tokenizer, ids: Sequence[int], tags: Collection[int]) -> str:
    """Text of a reply's beginning, without a character of which it holds only a part."""
    stream = tokenizer.stream(tags)
    return "".join(stream.push(token_id) for token_id in ids)


class _Boundary(NamedTuple):
    """A place between two tokens that is no place inside a character."""

    n_ids: int
    chars: int
    """Characters of the cleaned text before it."""


def edited_ids(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    edited: str,
    opening: str,
    spelled: Collection[int] = (),
) -> list[int]:
    """Return the ids of a reply, given as it was generated, with its answer or, before any, its
    thinking edited.

    The exact ids of the beginning that stays, which the cache keeps too, and new ones for what
    follows.

    ``opening``: the last words of the prompt, which may open a thinking block; ``spelled``: control
    tokens in the text.
    """
    stream = tokenizer.stream(spelled)
    cleaner = TextCleaner()
    pieces = [cleaner.push(stream.push(token_id)) for token_id in ids]
    text = "".join([*pieces, cleaner.push(stream.flush()), cleaner.flush()])
    start = answer_start(text, opened_by(opening))
    if edited == text[start:]:
        return list(ids)
    wanted = text[:start] + edited
    kept = [boundary for boundary in _boundaries(tokenizer, ids, spelled, wanted) if boundary.n_ids]
    while kept and kept[-1].chars > start and _is_within_word(wanted, kept[-1].chars):
        kept.pop()
    if kept:
        n_ids, chars = kept[-1]
    else:
        n_ids, chars = _Boundary(0, 0)
    rest = wanted[chars:]
    return [*ids[:n_ids], *(tokenizer.encode_text(rest, after_special=False) if rest else ())]


def _boundaries(
    tokenizer: Tokenizer, ids: Sequence[int], spelled: Collection[int], wanted: str
) -> Iterator[_Boundary]:
    """Yield the places up to which the ids say what is wanted."""
    stream = tokenizer.stream(spelled)
    cleaner = TextCleaner()
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
