"""SentencePiece-style BPE (``tokenizer.ggml.model`` = ``llama``): characters merge by score, or
become bytes.

The order of merges is llama.cpp's (ggml-org/llama.cpp, src/llama-vocab.cpp, ``llm_tokenizer_spm``):
best score first, then leftmost.
"""

import re

import numpy as np

from engine.tokenizer.merging import merge_symbols
from engine.tokenizer.vocabulary import TokenType, Vocabulary
from engine.tokenizer.words import WordCache

SPACE = "\u2581"

WORDS = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
SPACE_INSIDE = re.compile(f"[^{SPACE}]{SPACE}")


class SentencePieceBpe:
    """Encoder and decoder of ordinary text for one ``llama`` vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ranks: dict[str, int] | None = None
        self._ids: dict[str, int] = {}
        self._byte_ids: dict[int, int] = {}
        unknown_id = vocabulary.unknown_id
        self._unknown_id: int | None = None
        if (
            unknown_id is not None
            and unknown_id not in vocabulary.end_ids
            and vocabulary.types[unknown_id] == TokenType.UNKNOWN
        ):
            self._unknown_id = unknown_id
        self._can_cache_words = False
        self._words = WordCache(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text without special tokens.

        A character without a token becomes the tokens of its UTF-8 bytes, or one unknown token if
        the vocabulary has no byte tokens. Text never becomes a token that ends a text.
        """
        if self._ranks is None:
            self._prepare()
        text = text.replace(" ", SPACE)
        ids: list[int] = []
        words = WORDS.findall(text) if self._can_cache_words else [text]
        for word in words:
            ids += self._words.ids_of(word)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes of an ordinary token."""
        return spaced_bytes(self._vocabulary, token_id)

    def _prepare(self) -> None:
        """Build the tables on first use, since many files are opened without encoding."""
        vocabulary = self._vocabulary
        assert vocabulary.scores is not None
        # Merges must not produce reserved tokens: text must never become a control token by
        # accident.
        reserved = set(vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE))
        self._ids = {
            text: token_id for text, token_id in vocabulary.ids.items() if token_id not in reserved
        }
        self._byte_ids = {byte: token_id for token_id, byte in vocabulary.byte_values.items()}
        _, rank_of = np.unique(-vocabulary.scores, return_inverse=True)
        ranks = rank_of.tolist()
        self._ranks = {text: ranks[token_id] for text, token_id in self._ids.items()}
        # If no token has a space after another character, no merge crosses the start of a word.
        self._can_cache_words = not any(SPACE_INSIDE.search(text) for text in self._ids)

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for symbol in merge_symbols(list(word), self._ranks or {}, ""):
            token_id = self._ids.get(symbol)
            if token_id is not None:
                ids.append(token_id)
            elif self._byte_ids:
                ids += [self._byte_ids[byte] for byte in symbol.encode() if byte in self._byte_ids]
            elif self._unknown_id is not None:
                ids.append(self._unknown_id)
        return ids


def spaced_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """Return the raw bytes of an ordinary token whose text has ``SPACE`` for spaces and ``<0xXX>``
    for bytes."""
    token_type = vocabulary.types[token_id]
    text = vocabulary.texts[token_id]
    if token_type == TokenType.BYTE:
        return bytes([vocabulary.byte_values[token_id]])
    if token_type == TokenType.USER_DEFINED:
        return text.encode()
    return text.replace(SPACE, " ").encode()
