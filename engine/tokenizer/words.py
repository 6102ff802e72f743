"""Cache of encoded words, since most words of a text are repeated."""

from collections.abc import Callable

from engine.tokenizer.pauses import PERIOD_STEPS, pause

CACHED_WORDS = 1 << 16
"""Limit on the cached words. When it is reached, the cache is cleared."""
CACHED_WORD_CHARS = 64
"""Limit on the characters of a cached word."""


def is_space(char: str) -> bool:
    """Whether a character is white space in Unicode. Python counts four separators of tables,
    too."""
    return char.isspace() and not "\x1c" <= char <= "\x1f"


def lowered(char: str) -> str:
    """Return the small letter of a character, if it is a single character."""
    lower = char.lower()
    if len(lower) == 1:
        return lower
    return char


class WordCache:
    """Encodes each word once.

    Args:
        encode_word: returns the ids of a word.
    """

    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        self._encode_word = encode_word
        self._ids_by_word: dict[str, list[int]] = {}
        self._n_words = 0

    def ids_of(self, word: str) -> list[int]:
        """Return the ids of a word; the caller must not change them."""
        self._n_words += 1
        if self._n_words % PERIOD_STEPS == 0:
            pause()
        ids = self._ids_by_word.get(word)
        if ids is None:
            ids = self._encode_word(word)
            if len(self._ids_by_word) >= CACHED_WORDS:
                self._ids_by_word.clear()
            if len(word) <= CACHED_WORD_CHARS:
                self._ids_by_word[word] = ids
        return ids
