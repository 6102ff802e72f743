"""A reply that the user has edited, as tokens: the exact ids of the beginning that stays, new ones for what follows.

The text compared is the cleaned one, which the user saw; what stays of it keeps the very ids the model produced, so
that the cache keeps them too. Runs in the engine's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from app.conversations.thinking import answer_start
from app.text.clean_text import TextCleaner
from engine.prompt.thought_markers import opened_by

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


class _Boundary(NamedTuple):
    """A place between two tokens that is no place inside a character."""

    n_ids: int
    chars: int
    """Characters of the cleaned text before it."""


def edited_ids(
    tokenizer: Tokenizer, ids: Sequence[int], edited: str, opening: str, spelled: Collection[int] = ()
) -> list[int]:
    """Return the ids of a reply, given as it was generated, with its answer or, before any, its thinking edited.

    ``opening``: the last words of the prompt, which may open a thinking block; ``spelled``: control tokens in the text.
    """
    text = reply_text(tokenizer, ids, spelled, is_whole=True)
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


def reply_text(tokenizer: Tokenizer, ids: Sequence[int], spelled: Collection[int] = (), is_whole: bool = False) -> str:
    """Return the cleaned text of a reply; one that is not whole has no text for a character it only began."""
    stream, cleaner = tokenizer.stream(spelled), TextCleaner()
    text = "".join(cleaner.push(stream.push(token_id)) for token_id in ids)
    return text + cleaner.push(stream.flush()) + cleaner.flush() if is_whole else text


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
