"""Byte-level BPE (``tokenizer.ggml.model`` = ``gpt2``): every byte becomes a printable character,
and symbols merge by rank.

Source: openai/gpt-2, src/encoder.py, ``bytes_to_unicode``, for the alphabet.
"""

from collections.abc import Mapping

from engine.tokenizer.merging import merge_symbols
from engine.tokenizer.pretokenize import PRE_TOKENIZERS, splitter
from engine.tokenizer.vocabulary import TokenType, Vocabulary
from engine.tokenizer.words import WordCache


def _byte_alphabet() -> dict[int, str]:
    """Return the character of each byte: printable Latin-1 stays, others are U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    remaining = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(0x100 + i) for i, byte in enumerate(remaining)
    }


BYTE_TO_CHAR = _byte_alphabet()
CHAR_TO_BYTE = {ord(char): byte for byte, char in BYTE_TO_CHAR.items()}


class ByteLevelBpe:
    """Encoder and decoder of ordinary text for one ``gpt2`` vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ignore_merges = PRE_TOKENIZERS[vocabulary.pre].ignore_merges
        self._ranks: dict[str, int] | None = None
        self._ids: dict[str, int] = {}
        self._words = WordCache(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text without special tokens.

        Bytes without a token are left out, as in llama.cpp: the unknown token of such vocabularies
        often ends a text.
        """
        if self._ranks is None:
            self._prepare()
        ids: list[int] = []
        for word in splitter(self._vocabulary.pre)(text):
            ids += self._words.ids_of(word)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes of an ordinary token."""
        text = self._vocabulary.texts[token_id]
        if self._vocabulary.types[token_id] == TokenType.USER_DEFINED:
            return text.encode()
        raw = bytearray()
        for char in text:
            byte = CHAR_TO_BYTE.get(ord(char))
            if byte is None:
                raw += char.encode()
            else:
                raw += bytes([byte])
        return bytes(raw)

    def _prepare(self) -> None:
        """Build the tables on first use, since many files are opened without encoding."""
        self._ids, self._ranks = tables_of(self._vocabulary)

    def _encode_word(self, word: str) -> list[int]:
        # Latin-1 gives each byte a character, which translate() maps to the byte alphabet.
        spelled = word.encode().decode("latin-1").translate(BYTE_TO_CHAR)
        word_id = self._ids.get(spelled)
        if word_id is not None and (self._ignore_merges or len(spelled) == 1):
            return [word_id]
        ids = self._ids
        symbols = merge_symbols(list(spelled), self._ranks or {}, " ")
        word_ids: list[int] = []
        for symbol in symbols:
            token_id = ids.get(symbol)
            if token_id is not None:
                word_ids.append(token_id)
            else:  # the result of a merge, or a byte, without a token
                word_ids += [ids[char] for char in symbol if char in ids]
        return word_ids


def tables_of(vocabulary: Vocabulary) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of ordinary tokens by text, and the ranks of the merges between them.

    Merges into control tokens are left out: text must never become one by accident.
    """
    hidden = {vocabulary.texts[i] for i in vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)}
    ids = dict(vocabulary.ids)
    n_merges = len(vocabulary.merges)
    ranks = dict(zip(vocabulary.merges, range(n_merges), strict=True))
    if len(ranks) < n_merges:  # of a pair that is listed twice, the first rank counts
        ranks = dict(zip(reversed(vocabulary.merges), range(n_merges - 1, -1, -1), strict=True))
    for text in hidden:
        ids.pop(text, None)
    for pair in merges_into(hidden, ranks):
        ranks.pop(pair, None)
    return ids, ranks


def merges_into(texts: set[str], merges: Mapping[str, int]) -> list[str]:
    """Return the merges that result in one of the texts.

    All splits of the texts are listed if there are few; the splits of a text of 65,536 characters
    would take four gigabytes.
    """
    if sum(len(text) ** 2 for text in texts) < 16 * len(merges):
        return [f"{text[:index]} {text[index:]}" for text in texts for index in range(1, len(text))]
    return [pair for pair in merges if pair.replace(" ", "", 1) in texts]
