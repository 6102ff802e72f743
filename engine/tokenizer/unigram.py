"""Unigram (``tokenizer.ggml.model`` = ``t5``, SentencePiece's other model): of all ways to cut a
text, the likeliest.

Kudo 2018, arXiv:1804.10959; what is done to text before, and how ties end, is as in
ggml-org/llama.cpp, src/llama-vocab.cpp, ``llm_tokenizer_ugm``.
"""

from __future__ import annotations

from array import array

from engine.errors import TokenizerError
from engine.tokenizer.spm import SPACE, SPACE_INSIDE, WORDS, spaced_bytes
from engine.tokenizer.vocabulary import PREFIX, WRONGLY_MADE, TokenType, Vocabulary
from engine.tokenizer.words import WordCache

UNKNOWN_PENALTY = 10.0
"""How much worse an unknown character is than the worst token."""
MAX_PIECE_CHARS = 128
"""Longer tokens are not looked for: time is bounded by a text's length times this."""
MAX_RULE_BYTES = 64
"""Limit on the text that one rule of the file's table rewrites."""


class Unigram:
    """Turns ordinary text into ids and ids into bytes, for one ``t5`` vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._scores: dict[str, float] | None = None
        self._longest = 1
        self._unknown_score = 0.0
        self._words_are_apart = False
        self._rules = (
            Rules(vocabulary.normalizing.rules, vocabulary.file_name)
            if vocabulary.normalizing.rules
            else None
        )
        self._words = WordCache(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Ids of text without special tokens; unknown characters side by side become one unknown
        token.

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
        for word in WORDS.findall(text) if self._words_are_apart else [text] if text else []:
            ids += self._words.ids_of(word)
        unknown = self._vocabulary.unknown_id
        return [
            one for i, one in enumerate(ids) if one != unknown or not i or ids[i - 1] != unknown
        ]

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of an ordinary token."""
        return spaced_bytes(self._vocabulary, token_id)

    def _prepare(self) -> None:
        """Build the tables on first use, so that opening a file without encoding does not pay for
        them."""
        vocabulary = self._vocabulary
        assert vocabulary.scores is not None
        scores = vocabulary.scores.tolist()
        normal = vocabulary.ids_of(TokenType.NORMAL)
        found = {
            vocabulary.texts[i]: scores[i] for i in [*normal, *vocabulary.ids_of(TokenType.UNUSED)]
        }
        found |= dict.fromkeys(
            (vocabulary.texts[i] for i in vocabulary.ids_of(TokenType.USER_DEFINED)), 0.0
        )
        self._scores = {
            text: score for text, score in found.items() if len(text) <= MAX_PIECE_CHARS
        }
        self._longest = max(map(len, self._scores), default=1)
        self._unknown_score = min((scores[i] for i in normal), default=0.0) - UNKNOWN_PENALTY
        self._words_are_apart = not any(SPACE_INSIDE.search(text) for text in self._scores)

    def _encode_word(self, word: str) -> list[int]:
        """The best way to each place in turn (Viterbi); of equally good ways, that with the earlier
        last cut."""
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
    """A table of what texts are rewritten to before they are cut, as SentencePiece compiles it.

    A trie in one array (Kanda et al. 2018): each entry holds where its children are, the byte that
    leads to it, and whether a text ends with it; the texts that are put in follow the array, each
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
            f"{file_name}: {PREFIX}precompiled_charsmap is damaged ({WRONGLY_MADE})"
        )

    def apply(self, text: str) -> str:
        """Rewrite the longest text that the table knows at each place; the rest stays as it is."""
        raw = text.encode()
        out = bytearray()
        at = 0
        while at < len(raw):
            n, place = self._longest(raw, at)
            if n:
                end = self._texts.find(b"\0", place)
                if end < 0 or place >= len(self._texts):
                    raise self._damaged(self._file_name)
                out += self._texts[place:end]
                at += n
            else:
                if raw[at] < 0x80:
                    n = 1
                elif raw[at] < 0xE0:
                    n = 2
                elif raw[at] < 0xF0:
                    n = 3
                else:
                    n = 4
                out += raw[at : at + n]
                at += n
        return out.decode("utf-8", "replace")

    def _longest(self, raw: bytes, at: int) -> tuple[int, int]:
        """(bytes that a rule rewrites, where its text is), (0, 0) for none."""
        entries = self._entries
        found = (0, 0)
        if not entries:
            return found
        node = self._children(entries[0])
        for n, byte in enumerate(raw[at : at + MAX_RULE_BYTES], 1):
            node ^= byte
            if node >= len(entries) or entries[node] & 0x800000FF != byte:
                break
            entry = entries[node]
            node ^= self._children(entry)
            if entry >> 8 & 1:
                if node >= len(entries):
                    raise self._damaged(self._file_name)
                found = n, entries[node] & 0x7FFFFFFF
        return found

    @staticmethod
    def _children(entry: int) -> int:
        return entry >> 10 << ((entry & 0x200) >> 6)
