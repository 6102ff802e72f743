"""Text to token ids and back, from the metadata of a GGUF file.

Special tokens are cut out first (``special``); the vocabulary's model (``MODELS``) encodes ordinary
text.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from os import PathLike
from typing import Any, Protocol

from engine.errors import TokenizerError
from engine.tokenizer.bpe import ByteLevelBpe
from engine.tokenizer.character_bpe import CharacterBpe
from engine.tokenizer.pretokenize import PRE_TOKENIZERS
from engine.tokenizer.special import Fragment, SpecialTokens
from engine.tokenizer.spm import SentencePieceBpe
from engine.tokenizer.stream import TextStream
from engine.tokenizer.unigram import Unigram
from engine.tokenizer.vocabulary import TokenType, Vocabulary, check_merges, read_vocabulary
from engine.tokenizer.wordpiece import WordPiece

__all__ = ["Fragment", "TextStream", "Tokenizer"]


class _Model(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...


MODELS: dict[str, Callable[[Vocabulary], _Model]] = {
    "gpt2": ByteLevelBpe,
    "llama": SentencePieceBpe,
    "gemma4": CharacterBpe,
    "t5": Unigram,
    "bert": WordPiece,
}
"""Class that encodes ordinary text, by ``tokenizer.ggml.model``."""

_GUESSED_NOTICE = (
    "{}: does not say how its model cuts words (tokenizer.ggml.pre), so answers may be worse "
    "than they could be "
    "(get a newer file of this model)"
)
_HIDDEN_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Encodes and decodes text with one vocabulary; ids are 0 to ``vocab_size`` - 1.

    Attributes:
        vocab_size: number of tokens.
        bos_id: id of the begin-of-text token, or None.
        eos_id: id of the end-of-text token, or None.
        end_ids: ids of all tokens that end a turn or a text.
        add_bos: whether the model expects ``bos_id`` before a text.
        add_eos: whether the model expects ``eos_id`` after a text.
        infill: marks for filling in the middle.
        notices: warnings about missing or wrong fields of the file, one line each.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        is_raw = vocabulary.model == "gpt2" and PRE_TOKENIZERS[vocabulary.pre].is_raw
        self._model: _Model = MODELS["gemma4" if is_raw else vocabulary.model](vocabulary)
        self._special = SpecialTokens(vocabulary)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = len(vocabulary.texts)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self.infill = vocabulary.infill
        self.notices: list[str] = []
        if vocabulary.is_pre_guessed:
            self.notices.append(_GUESSED_NOTICE.format(vocabulary.file_name))
        if vocabulary.ignored:
            self.notices.append(
                f"{vocabulary.file_name}: {'; '.join(vocabulary.ignored)} (counts as missing)"
            )

    @classmethod
    def open(cls, path: str | PathLike[str]) -> "Tokenizer":
        """Read the vocabulary of a GGUF file; it may have no tensors.

        Raises:
            FileUnreadableError: the file cannot be opened.
            GGUFError: it is not a valid GGUF file.
            TokenizerError: its vocabulary is damaged or not supported.
        """
        from engine.gguf.read import read_gguf

        file = read_gguf(path)
        try:
            return cls.from_metadata(file.metadata, file.shown_name)
        finally:
            file.close()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], file_name: str) -> "Tokenizer":
        """Make a tokenizer from a file's metadata.

        Args:
            metadata: scalars as Python values, arrays of numbers as numpy arrays, arrays of strings
                as ``StringArray`` or list[bytes].
            file_name: name of the file for messages.

        Raises:
            TokenizerError: the vocabulary is damaged or not supported; the message names file and
                field.
        """
        return cls(read_vocabulary(metadata, file_name))

    def check(self) -> None:
        """Check that merges result in tokens, which is too slow for every start.

        Raises:
            TokenizerError: the result of a merge is not a token.
        """
        check_merges(self._vocabulary)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the tokens, 32 hexadecimal digits. Equal vocabularies have the same ids."""
        return blake2b("\0".join(self._vocabulary.texts).encode(), digest_size=16).hexdigest()

    @cached_property
    def most_token_bytes(self) -> int:
        """Bytes of the longest token. A text of n bytes has at least n / ``most_token_bytes``
        tokens."""
        texts = self._vocabulary.texts
        has_byte_alphabet = isinstance(self._model, ByteLevelBpe)
        if has_byte_alphabet:  # each character is a byte
            sizes = [len(text) for text in texts]
        else:
            sizes = [len(text.encode()) for text in texts]
        user_defined = self._vocabulary.ids_of(TokenType.USER_DEFINED)
        return max(*sizes, *(len(texts[token_id].encode()) for token_id in user_defined), 4)

    @property
    def control_texts(self) -> Mapping[str, int]:
        """Ids of all control tokens by their text, longest first."""
        return self._special.control

    def token_text(self, token_id: int | None) -> str:
        """Return the text of a token in the vocabulary, as templates print it; empty for None."""
        if token_id is None:
            return ""
        return self._vocabulary.texts[token_id]

    def encode(self, text: str, bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the token ids of a text, the same as llama.cpp's.

        Args:
            text: any text; lone surrogates count as U+FFFD.
            bos: prepend the begin-of-text token, if the vocabulary has one. None follows
                ``add_bos`` and ``add_eos``.
            special: recognise control tokens spelled in the text. Use False for a user's text.
        """
        ids = []
        prepends_bos = self.add_bos if bos is None else bos
        if prepends_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        ids += self._encode(text, special, after_special=True)
        if bos is None and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def split(self, text: str, special: bool) -> list[Fragment]:
        """Cut text at the special tokens spelled in it; see :meth:`encode` for ``special``."""
        return self._special.split(text, special)

    def encode_text(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of text inside a prompt. Control tokens spelled in it stay text.

        Args:
            text: untrusted text.
            after_special: whether the text follows a special token or begins the prompt.
                SentencePiece vocabularies with ``add_space_prefix`` then prepend a space, as
                llama.cpp does.
        """
        return self._encode(text, False, after_special)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; control tokens have no text, invalid UTF-8 becomes U+FFFD.

        The leading space that encoding adds (``add_space_prefix``) is removed. To decode the
        continuation of a text, use :meth:`stream`.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        raw = b"".join(self.token_bytes(token_id) for token_id in ids)
        if self._vocabulary.add_space_prefix:
            raw = raw.removeprefix(b" ")
        return raw.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for control, unknown and unused tokens.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        raw = self._bytes.get(token_id)
        if raw is None:
            if not 0 <= token_id < self.vocab_size:
                name = self._vocabulary.file_name
                raise TokenizerError(
                    f"{name}: token {token_id} is outside the vocabulary of {self.vocab_size} "
                    f"tokens"
                )
            raw = self._vocabulary.without_text.get(token_id)
            if self._vocabulary.types[token_id] in _HIDDEN_TYPES:
                raw = b""
            elif raw is None:
                raw = self._model.token_bytes(token_id)
            self._bytes[token_id] = raw
        return raw

    def spelled_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, or its name if it has none; empty for an id outside the
        vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        return self.token_bytes(token_id) or self.token_text(token_id).encode()

    def stream(self, visible_control_ids: Collection[int] = ()) -> TextStream:
        """Return a decoder for generated tokens, one at a time.

        Args:
            visible_control_ids: ids of control tokens to spell out as text; all others have no
                text.
        """
        texts = self._vocabulary.texts

        def token_bytes(token: int) -> bytes:
            if token in visible_control_ids:
                return texts[token].encode()
            return self.token_bytes(token)

        return TextStream(token_bytes)

    def _encode(self, text: str, special: bool, after_special: bool) -> list[int]:
        ids: list[int] = []
        for fragment in self.split(text, special):
            if fragment.token_id is None:
                ids += self._encode_ordinary(fragment.text, after_special)
            else:
                ids.append(fragment.token_id)
            after_special = fragment.token_id is not None
        return ids

    def _encode_ordinary(self, text: str, after_special: bool) -> list[int]:
        if not text.isascii():
            text = _LONE_SURROGATES.sub("\ufffd", text)
        if after_special and self._vocabulary.add_space_prefix:
            text = " " + text
        return self._model.encode(text)
