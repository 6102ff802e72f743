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
    """Turns ordinary text into ids and ids into bytes, for one ``gemma4`` or ``whitespace``
    vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ranks: dict[str, int] | None = None
        self._ids: dict[str, int] = {}
        self._byte_ids = {byte: token_id for token_id, byte in vocabulary.byte_values.items()}
        self._words_are_apart = False
        self._words = WordCache(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Ids of text without special tokens.

        A character without a token becomes its UTF-8 bytes' tokens; bytes without one are left out,
        as llama.cpp does.
        """
        if self._ranks is None:
            self._ids, self._ranks = tables_of(self._vocabulary)
            # Where no token has a space after something else, no merge crosses a word's start and
            # words can be cached.
            self._words_are_apart = not any(SPACE_INSIDE.search(text) for text in self._ids)
        ids: list[int] = []
        if self._vocabulary.pre == "whitespace":
            if self._vocabulary.normalizing.lowers:
                text = "".join(map(lowered, text))
            for word in "".join(" " if is_space(char) else char for char in text).split(" "):
                ids += self._words.ids_of(word)
            return ids
        for line in splitter(self._vocabulary.pre)(text.replace(" ", SPACE)):
            for word in WORDS.findall(line) if self._words_are_apart else [line]:
                ids += self._words.ids_of(word)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of an ordinary token."""
        return spaced_bytes(self._vocabulary, token_id)

    def _encode_word(self, word: str) -> list[int]:
        if word in self._ids and not word.strip("\n"):
            return [self._ids[word]]
        ids: list[int] = []
        for symbol in merge_symbols(list(word), self._ranks or {}, " "):
            for part in (
                [symbol] if symbol in self._ids else symbol
            ):  # the result of a merge may be no token
                token_id = self._ids.get(part)
                if token_id is not None:
                    ids.append(token_id)
                else:
                    ids += [
                        self._byte_ids[byte] for byte in part.encode() if byte in self._byte_ids
                    ]
        return ids
