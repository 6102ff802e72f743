"""Unigram (``tokenizer.ggml.model`` = ``t5``, SentencePiece's other model): the most likely way to
cut a text.

Source: Kudo 2018, arXiv:1804.10959. Normalisation and ties follow ggml-org/llama.cpp,
src/llama-vocab.cpp, ``llm_tokenizer_ugm``.
"""

from __future__ import annotations

from array import array

from engine.errors import TokenizerError
from engine.tokenizer.spm import SPACE, SPACE_INSIDE, WORDS, spaced_bytes
from engine.tokenizer.vocabulary import BAD_FILE_ADVICE, PREFIX, TokenType, Vocabulary
from engine.tokenizer.words import WordCache

UNKNOWN_PENALTY = 10.0
"""Difference between the score of an unknown character and that of the worst token."""
MAX_PIECE_CHARS = 128
"""Limit on the characters of a token. Longer ones are never used, which limits the time."""
MAX_RULE_BYTES = 64
"""Limit on the text that one rule of the file's table rewrites."""


class Unigram:
    """Encoder and decoder of ordinary text for one ``t5`` vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._scores: dict[str, float] | None = None
        self._longest = 1
        self._unknown_score = 0.0
        self._can_cache_words = False
        self._rules: Rules | None = None
        if vocabulary.normalizing.rules:
            self._rules = Rules(vocabulary.normalizing.rules, vocabulary.file_name)
        self._words = WordCache(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text without special tokens. A run of unknown characters becomes one
        unknown token.

        Raises:
            TokenizerError: the file's table of rewritten characters is damaged.
        """
        if self._scores is None:
            self._prepare()
        if self._rules:
            text = self._rules.apply(text)
        if self._vocabulary.normalizing.merges_spaces:
            text = "".join(SPACE + word for word in text.split(" ") if word)
        else:
            text = text.replace(" ", SPACE)
        ids: list[int] = []
        if self._can_cache_words:
            words = WORDS.findall(text)
        else:
            words = [text] if text else []
        for word in words:
            ids += self._words.ids_of(word)
        unknown = self._vocabulary.unknown_id
        return [
            token_id
            for i, token_id in enumerate(ids)
            if token_id != unknown or not i or ids[i - 1] != unknown
        ]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes of an ordinary token."""
        return spaced_bytes(self._vocabulary, token_id)

    def _prepare(self) -> None:
        """Build the tables on first use, since many files are opened without encoding."""
        vocabulary = self._vocabulary
        assert vocabulary.scores is not None
        scores = vocabulary.scores.tolist()
        normal = vocabulary.ids_of(TokenType.NORMAL)
        scores_by_text = {
            vocabulary.texts[i]: scores[i] for i in [*normal, *vocabulary.ids_of(TokenType.UNUSED)]
        }
        scores_by_text |= dict.fromkeys(
            (vocabulary.texts[i] for i in vocabulary.ids_of(TokenType.USER_DEFINED)), 0.0
        )
        self._scores = {
            text: score for text, score in scores_by_text.items() if len(text) <= MAX_PIECE_CHARS
        }
        self._longest = max(map(len, self._scores), default=1)
        self._unknown_score = min((scores[i] for i in normal), default=0.0) - UNKNOWN_PENALTY
        self._can_cache_words = not any(SPACE_INSIDE.search(text) for text in self._scores)

    def _encode_word(self, word: str) -> list[int]:
        """Find the best cut of a word (Viterbi). Of equally good cuts, the one whose last token is
        longer wins."""
        scores = self._scores or {}
        n = len(word)
        best = [0.0, *[float("-inf")] * n]
        starts = [0] * (n + 1)
        is_known = bytearray(n + 1)
        for start in range(n):
            base = best[start]
            for end in range(start + 1, min(n, start + self._longest) + 1):
                score = scores.get(word[start:end])
                if score is not None and base + score > best[end]:
                    best[end] = base + score
                    starts[end] = start
                    is_known[end] = 1
            if word[start] not in scores and base + self._unknown_score > best[start + 1]:
                best[start + 1] = base + self._unknown_score
                starts[start + 1] = start
                is_known[start + 1] = 0
        ids: list[int] = []
        end = n
        unknown = self._vocabulary.unknown_id
        while end:
            start = starts[end]
            if is_known[end]:
                ids.append(self._vocabulary.ids[word[start:end]])
            elif unknown is not None:
                ids.append(unknown)
            end = start
        return ids[::-1]


class Rules:
    """Table of texts that are rewritten before a text is cut, as SentencePiece compiles it.

    It is a trie in one array (Kanda et al. 2018). Each entry has the position of its children, the
    byte that leads to it, and a flag for the end of a text. The replacements follow the array, each
    ended by a zero byte.

    Raises:
        TokenizerError: the table is damaged.
    """

    def __init__(self, raw: bytes, file_name: str) -> None:
        n_bytes = int.from_bytes(raw[:4], "little")
        if n_bytes % 4 or 4 + n_bytes > len(raw):
            raise self._damaged(file_name)
        self._file_name = file_name
        self._texts = raw[4 + n_bytes :]
        self._entries = array("I", raw[4 : 4 + n_bytes])
        assert self._entries.itemsize == 4

    @staticmethod
    def _damaged(file_name: str) -> TokenizerError:
        return TokenizerError(
            f"{file_name}: {PREFIX}precompiled_charsmap is damaged ({BAD_FILE_ADVICE})"
        )

    def apply(self, text: str) -> str:
        """Rewrite the longest text in the table at each position; other text stays the same."""
        raw = text.encode()
        out = bytearray()
        position = 0
        while position < len(raw):
            n, offset = self._longest(raw, position)
            if n:
                end = self._texts.find(b"\0", offset)
                if end < 0 or offset >= len(self._texts):
                    raise self._damaged(self._file_name)
                out += self._texts[offset:end]
                position += n
            else:
                n = _utf8_length(raw[position])
                out += raw[position : position + n]
                position += n
        return out.decode("utf-8", "replace")

    def _longest(self, raw: bytes, position: int) -> tuple[int, int]:
        """Return the number of bytes that a rule rewrites and the offset of its replacement; (0, 0)
        if there is no rule."""
        entries = self._entries
        match = (0, 0)
        if not entries:
            return match
        node = self._children(entries[0])
        for n, byte in enumerate(raw[position : position + MAX_RULE_BYTES], 1):
            node ^= byte
            if node >= len(entries) or entries[node] & 0x800000FF != byte:
                break
            entry = entries[node]
            node ^= self._children(entry)
            if entry >> 8 & 1:
                if node >= len(entries):
                    raise self._damaged(self._file_name)
                match = n, entries[node] & 0x7FFFFFFF
        return match

    @staticmethod
    def _children(entry: int) -> int:
        return entry >> 10 << ((entry & 0x200) >> 6)


def _utf8_length(first_byte: int) -> int:
    """Return the bytes of a character in UTF-8."""
    if first_byte < 0x80:
        return 1
    if first_byte < 0xE0:
        return 2
    if first_byte < 0xF0:
        return 3
    return 4
