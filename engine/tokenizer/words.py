"""Ids of words that were encoded before: most words of a text are repeated."""

from collections.abc import Callable

from engine.tokenizer.pauses import PERIOD_STEPS, pause

CACHED_WORDS = 1 << 16
"""Limit on the words kept; then all are forgotten."""
CACHED_WORD_CHARS = 64
"""Limit on a kept word's characters."""


def is_space(char: str) -> bool:
    """Whether a character is white space, as Unicode has it: Python counts four separators of
    tables, too."""
    return char.isspace() and not "\x1c" <= char <= "\x1f"


def lowered(char: str) -> str:
    """The small letter of a character, where that is one character."""
    small = char.lower()
    if len(small) == 1:
        return small
    return char


class WordCache:
    """Encodes words, each once; ``encode_word``: ids of one word."""

    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        self._encode_word = encode_word
        self._known: dict[str, list[int]] = {}
        self._n_words = 0

    def ids_of(self, word: str) -> list[int]:
        """The word's ids; not to be changed."""
        self._n_words += 1
        if self._n_words % PERIOD_STEPS == 0:
            pause()
        found = self._known.get(word)
        if found is None:
            found = self._encode_word(word)
            if len(self._known) >= CACHED_WORDS:
                self._known.clear()
            if len(word) <= CACHED_WORD_CHARS:
                self._known[word] = found
        return found
