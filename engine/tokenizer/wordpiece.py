"""WordPiece (``tokenizer.ggml.model`` = ``bert``): a word becomes the longest tokens from its start
on.

Normalisation follows ggml-org/llama.cpp, src/llama-vocab.cpp, ``llm_tokenizer_wpm``: words end at
white space, each sign and each Chinese character is a word, and a word that tokens do not cover is
unknown as a whole. When marks are removed, llama.cpp keeps only the first letter of Korean
syllables; here all stay, as in the definition of the vocabularies.
"""

from __future__ import annotations

import unicodedata

from engine.tokenizer.spm import SPACE, spaced_bytes
from engine.tokenizer.vocabulary import TokenType, Vocabulary
from engine.tokenizer.words import WordCache, is_space, lowered

MAX_PIECE_CHARS = 128
"""Limit on the characters of a token. Longer ones are never used, which limits the time."""
_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class WordPiece:
    """Encoder and decoder of ordinary text for one ``bert`` vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids: dict[str, int] = {}
        self._longest = 0
        self._words = WordCache(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text without special tokens."""
        if not self._longest:
            reserved = set(
                self._vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)
            )
            ids = self._vocabulary.ids
            self._ids = {
                text: i
                for text, i in ids.items()
                if i not in reserved and len(text) <= MAX_PIECE_CHARS
            }
            self._longest = max(map(len, self._ids), default=1)
        ids_of_words = (self._words.ids_of(word) for word in self._split(text))
        return [token_id for ids in ids_of_words for token_id in ids]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes of an ordinary token."""
        return spaced_bytes(self._vocabulary, token_id)

    def _split(self, text: str) -> list[str]:
        normalizing = self._vocabulary.normalizing
        words = [""]
        if normalizing.strips_accents:
            text = unicodedata.normalize("NFD", text)
        for char in text:
            category = unicodedata.category(char)
            if is_space(char):
                words.append("")
            elif (
                char in "\0\ufffd"
                or category in ("Cc", "Cf", "Co", "Cs")
                or (normalizing.strips_accents and category[0] == "M")
            ):
                continue
            else:
                letter = lowered(char) if normalizing.lowers else char
                if (
                    category[0] == "P"
                    or (category[0] == "S" and char < "\x7f")
                    or _is_chinese(ord(char))
                ):
                    words += [letter, ""]
                else:
                    words[-1] += letter
        return [word for word in words if word]

    def _encode_word(self, word: str) -> list[int]:
        marked = SPACE + word
        start = 0
        ids = []
        while start < len(marked):
            for end in range(min(len(marked), start + self._longest), start, -1):
                token_id = self._ids.get(marked[start:end])
                if token_id is not None:
                    ids.append(token_id)
                    start = end
                    break
            else:
                if self._vocabulary.unknown_id is None:
                    return []
                return [self._vocabulary.unknown_id]
        return ids


def _is_chinese(code: int) -> bool:
    return code >= 0x3400 and any(first <= code <= last for first, last in _CHINESE)
