"""BPE on characters, without a byte alphabet (``tokenizer.ggml.model`` = ``gemma4`` or
``whitespace``).

Spaces are written as U+2581, or left out between words. Source: ggml-org/llama.cpp,
src/llama-vocab.cpp, ``LLAMA_VOCAB_PRE_TYPE_GEMMA4`` and ``llm_tokenizer_whitespace_session``.
"""

from engine.tokenizer.bpe import tables_of
from engine.tokenizer.merging import merge_symbols
from engine.tokenizer.pretokenize import splitter
from engine.tokenizer.spm import SPACE, SPACE_INSIDE, WORDS, spaced_bytes
from engine.tokenizer.vocabulary import Vocabulary
from engine.tokenizer.words import WordCache, is_space, lowered


class CharacterBpe:
    """Encoder and decoder of ordinary text for one ``gemma4`` or ``whitespace`` vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ranks: dict[str, int] | None = None
        self._ids: dict[str, int] = {}
        self._byte_ids = {byte: token_id for token_id, byte in vocabulary.byte_values.items()}
        self._can_cache_words = False
        self._words = WordCache(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text without special tokens.

        A character without a token becomes the tokens of its UTF-8 bytes. Bytes without a token are
        left out, as in llama.cpp.
        """
        if self._ranks is None:
            self._ids, self._ranks = tables_of(self._vocabulary)
            # If no token has a space after another character, no merge crosses the start of a word.
            self._can_cache_words = not any(SPACE_INSIDE.search(text) for text in self._ids)
        ids: list[int] = []
        if self._vocabulary.pre == "whitespace":
            if self._vocabulary.normalizing.lowers:
                text = "".join(map(lowered, text))
            for word in _split_at_spaces(text):
                ids += self._words.ids_of(word)
            return ids
        for line in splitter(self._vocabulary.pre)(text.replace(" ", SPACE)):
            words = WORDS.findall(line) if self._can_cache_words else [line]
            for word in words:
                ids += self._words.ids_of(word)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes of an ordinary token."""
        return spaced_bytes(self._vocabulary, token_id)

    def _encode_word(self, word: str) -> list[int]:
        if word in self._ids and not word.strip("\n"):
            return [self._ids[word]]
        ids: list[int] = []
        for symbol in merge_symbols(list(word), self._ranks or {}, " "):
            if symbol in self._ids:
                ids.append(self._ids[symbol])
            else:  # the result of a merge may be no token
                for char in symbol:
                    ids += self._ids_of_character(char)
        return ids

    def _ids_of_character(self, char: str) -> list[int]:
        token_id = self._ids.get(char)
        if token_id is not None:
            return [token_id]
        return [self._byte_ids[byte] for byte in char.encode() if byte in self._byte_ids]


def _split_at_spaces(text: str) -> list[str]:
    return "".join(" " if is_space(char) else char for char in text).split(" ")
