"""Text to token ids and back, from nothing but a GGUF file's metadata.

The facade over one vocabulary: special tokens are cut out first (``special``), ordinary text goes
to the vocabulary's model (``MODELS``). Knows nothing of chat templates, tensors or generation.
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
"""``tokenizer.ggml.model`` to the class that encodes ordinary text."""

_GUESSED = (
    "{}: does not say how its model cuts words (tokenizer.ggml.pre), so answers may be worse "
    "than they could be "
    "(get a newer file of this model)"
)
_WITHOUT_TEXT = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Encodes and decodes text with one vocabulary; ids are 0 to ``vocab_size`` - 1.

    Attributes:
        vocab_size: number of tokens.
        bos_id: id of the begin-of-text token, or None.
        eos_id: id of the end-of-text token, or None.
        end_ids: ids of all tokens that end a turn or a text.
        add_bos: whether the model wants ``bos_id`` in front of a text.
        add_eos: whether the model wants ``eos_id`` after a text.
        notices: lines for the user on what the file does not say, or says wrongly.
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
        if vocabulary.is_pre_guessed:
            self.notices = [_GUESSED.format(vocabulary.file_name)]
        else:
            self.notices = []
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
        """Build from a file's metadata values.

        Args:
            metadata: scalars as Python values, arrays of numbers as numpy arrays, arrays of strings
                as ``StringArray`` or list[bytes].
            file_name: named in errors.

        Raises:
            TokenizerError: the vocabulary is damaged or not supported; the message names file and
                field.
        """
        return cls(read_vocabulary(metadata, file_name))

    def check(self) -> None:
        """Run the check that is too slow for every start.

        Raises:
            TokenizerError: the result of a merge is not a token.
        """
        check_merges(self._vocabulary)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the tokens, 32 hexadecimal digits: ids of equal vocabularies mean the same."""
        return blake2b("\0".join(self._vocabulary.texts).encode(), digest_size=16).hexdigest()

    @cached_property
    def most_token_bytes(self) -> int:
        """Bytes of the longest token: a text of n bytes has at least n divided by this many
        tokens."""
        texts = self._vocabulary.texts
        is_apart = isinstance(self._model, ByteLevelBpe)
        # each letter is a byte
        plain = map(len, texts) if is_apart else (len(text.encode()) for text in texts)
        return max(
            *plain,
            *(len(texts[one].encode()) for one in self._vocabulary.ids_of(TokenType.USER_DEFINED)),
            4,
        )

    @property
    def control_texts(self) -> Mapping[str, int]:
        """Spelling to id of every control token, longest first."""
        return self._special.control

    def token_text(self, token_id: int | None) -> str:
        """A token as the vocabulary spells it, the form that templates print; empty for None."""
        if token_id is None:
            return ""
        return self._vocabulary.texts[token_id]

    def encode(self, text: str, bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the token ids of a text, the same as llama.cpp's.

        Args:
            text: any text; lone surrogates count as U+FFFD.
            bos: put the begin-of-text token in front, if the vocabulary has one. None does what the
                vocabulary asks for, and then also appends the end-of-text token if it asks for
                that.
            special: recognise control tokens spelled in the text. False for text from a user: it
                stays text.
        """
        if bos is None:
            wants_bos = self.add_bos
        else:
            wants_bos = bos
        if wants_bos and self.bos_id is not None:
            ids = [self.bos_id]
        else:
            ids = []
        ids += self._encode(text, special, after_special=True)
        if bos is None and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def split(self, text: str, special: bool) -> list[Fragment]:
        """Cut text at the special tokens spelled in it; see :meth:`encode` for ``special``."""
        return self._special.split(text, special)

    def encode_text(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of text inside a prompt; control tokens spelled in it stay text.

        Args:
            text: untrusted text.
            after_special: whether a special token or nothing is before it. SentencePiece
                vocabularies with ``add_space_prefix`` then put a space before it, at every such
                place, as llama.cpp does.
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
        """The bytes of a token; empty for control, unknown and unused tokens.

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
            hidden = self._vocabulary.types[token_id] in _WITHOUT_TEXT
            known = b"" if hidden else self._vocabulary.without_text.get(token_id)
            raw = self._bytes[token_id] = (
                self._model.token_bytes(token_id) if known is None else known
            )
        return raw

    def spelled_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, or its name where it has none; empty outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        return self.token_bytes(token_id) or self.token_text(token_id).encode()

    def stream(self, spelled: Collection[int] = ()) -> TextStream:
        """Return a decoder for generated tokens, one at a time.

        Args:
            spelled: ids of control tokens to spell out as text; all others have none.
        """
        texts = self._vocabulary.texts
        return TextStream(
            lambda token: texts[token].encode() if token in spelled else self.token_bytes(token)
        )

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
