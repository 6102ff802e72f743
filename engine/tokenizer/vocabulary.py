"""The vocabulary of a GGUF file, checked once: the tokens, their types and the special ids.

Reads the ``tokenizer.ggml.*`` keys; does not encode text. All values come from an untrusted file; those that pass
:func:`read_vocabulary` may be indexed without further checks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from engine.errors import TokenizerError, shown
from engine.gguf.strings import StringArray, joined
from engine.tokenizer.pretokenize import PRE_TOKENIZERS, resolve_pre_tokenizer

PREFIX = "tokenizer.ggml."
DAMAGED = "the vocabulary is damaged, download or convert the model again"

MAX_TOKEN_CHARS = 1 << 16
"""Limit on a token's length in characters; tokens in use have a few hundred bytes at most."""


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


END_TEXTS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>"}
    | {"<|return|>", "<|call|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"}
    | {"<turn|>", "<|tool_response>", "<|flush|>", "<|calls|>", "[e~["}
    | {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
)
"""Tokens that end a reply whatever their declared type (llama.cpp, llama-vocab.cpp, ``special_eog_ids``)."""

AMBIGUOUS_END_TEXTS = frozenset(
    {"</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"}
    | {"<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<fim-repo>", "<REPO>", "<reponame>"}
)
"""Tokens that end a reply only if the file marks them as special: in Qwen's vocabulary ``</s>`` is a word."""

_NO_ENDS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|calls|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),
)
"""Tokens that end no reply where others stand beside them: gpt-oss ends each channel of a reply with ``<|end|>``."""

_USUAL_PRE = {"qwen2": "qwen2", "qwen3": "qwen2"}
"""Pre-tokenizer by architecture, for files from before ``tokenizer.ggml.pre`` (llama.cpp, April 2024)."""
_OTHER_MODELS = {"rwkv": "RWKV", "plamo2": "PLaMo-2"}
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2},
    "bert": {"bos": 101, "seperator": 102, "unknown": 100},
}
"""Ids that files may leave out; ``seperator`` is spelled as GGUF spells it."""
_SCORED, _UNMERGED = ("llama", "t5"), ("llama", "t5", "bert")
"""Models whose tokens have scores, and those that have no list of merges."""
_PAIR = re.compile(rb"[^ ]+ [^ ]+")
_BYTE_TEXT = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Normalizing:
    """What is done to text before it is cut, by Unigram and WordPiece.

    Attributes:
        rules: SentencePiece's table of rewritten characters; empty for none.
        merges_spaces: runs of spaces count as one, and a text begins with one.
        lowers: capital letters become small ones.
        strips_accents: marks go.
    """

    rules: bytes = b""
    merges_spaces: bool = False
    lowers: bool = True
    strips_accents: bool = True


@dataclass(frozen=True)
class Vocabulary:
    """A checked vocabulary.

    Attributes:
        file_name: for messages.
        model: ``llama`` (SentencePiece-style), ``gpt2`` (byte-level BPE), ``gemma4`` (BPE on characters), ``t5``
            (Unigram) or ``bert`` (WordPiece).
        pre: name in ``PRE_TOKENIZERS``; SentencePiece does not use it.
        texts: (vocab_size,) the token texts as the file spells them.
        ids: text to id.
        types: (vocab_size,) one :class:`TokenType` per token.
        scores: (vocab_size,) float32, or None for BPE by merges.
        merges: ``left right`` pairs, the earlier the stronger; empty for ``llama``.
        byte_values: id to byte, for tokens that stand for one raw byte.
        end_ids: tokens that end a turn or a text.
        rstrip_ids: special tokens that swallow the white space behind them.
        normalizing: of ``t5`` and ``bert``.
        is_pre_guessed: True if neither the file nor its architecture names the pre-tokenizer.
    """

    file_name: str
    model: str
    pre: str
    texts: list[str]
    ids: dict[str, int]
    types: bytes
    scores: np.ndarray | None
    merges: list[str]
    byte_values: dict[int, int]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    end_ids: frozenset[int]
    rstrip_ids: frozenset[int] = frozenset()
    is_pre_guessed: bool = False
    normalizing: Normalizing = Normalizing()

    def ids_of(self, *types: TokenType) -> list[int]:
        """Ids of all tokens of the given types, ascending."""
        return _ids_of(self.types, types)


def read_vocabulary(metadata: Mapping[str, Any], file_name: str) -> Vocabulary:
    """Read and check the vocabulary in a file's metadata.

    Raises:
        TokenizerError: a field is missing, of the wrong type, out of range, or contradicts another one.
    """
    fields = _Fields(metadata, file_name)
    model, pre = kind_of_vocabulary(metadata, file_name)
    texts, ids = _read_tokens(fields)
    default_ids = _DEFAULT_IDS.get(model, {})
    bos_id, eos_id, unknown_id, eot_id, eom_id, separator_id = (
        fields.token_id(f"{name}_token_id", len(texts), default_ids.get(name))
        for name in ("bos", "eos", "unknown", "eot", "eom", "seperator")
    )
    if model == "bert":  # a text stands between its two marks
        eos_id = separator_id
    types = _read_types(fields, texts, model, control_ids={bos_id, eos_id}, unknown_id=unknown_id)
    declared_ends = {token_id for token_id in (eos_id, eot_id, eom_id) if token_id is not None}
    end_ids = _find_end_tokens(ids, types) | declared_ends
    add_bos = fields.flag("add_bos_token", model == "llama" or PRE_TOKENIZERS[pre].add_bos) or model in (
        "gemma4",
        "bert",
    )
    return Vocabulary(
        file_name=file_name,
        model=model,
        pre=pre,
        texts=texts,
        ids=ids,
        types=bytes(types),
        scores=_read_scores(fields, len(texts)) if model in _SCORED else None,
        merges=_read_merges(fields) if model not in _UNMERGED else [],
        byte_values=_read_byte_tokens(fields, texts, types),
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=unknown_id,
        add_bos=add_bos and bos_id is not None,
        add_eos=(model == "bert" or fields.flag("add_eos_token", model == "t5")) and eos_id is not None,
        add_space_prefix=model in _SCORED and fields.flag("add_space_prefix", True),
        end_ids=frozenset(end_ids),
        rstrip_ids=_find_rstrip_tokens(metadata, texts, types),
        is_pre_guessed=model == "gpt2" and pre == "default" and fields.get("pre") is None,
        normalizing=_read_normalizing(fields),
    )


def kind_of_vocabulary(metadata: Mapping[str, Any], file_name: str) -> tuple[str, str]:
    """Return the tokenizer model and pre-tokenizer; needs only the header's scalars.

    Returns:
        ``llama``, ``gpt2``, ``gemma4``, ``t5`` or ``bert``, and a key of ``PRE_TOKENIZERS``.

    Raises:
        TokenizerError: the model or the pre-tokenizer is not supported.
    """
    fields = _Fields(metadata, file_name)
    model = fields.text("model")
    if model in _OTHER_MODELS:
        raise fields.error("model", f"is '{model}'", f"{_OTHER_MODELS[model]} vocabularies are not supported")
    if model not in ("llama", "gpt2", "gemma4", "t5", "bert"):
        raise fields.error("model", f"is '{shown(model)}'", "supported: llama, gpt2, gemma4, t5, bert")
    if model != "gpt2":
        return model, "gemma4" if model == "gemma4" else "default"
    usual = _USUAL_PRE.get(str(metadata.get("general.architecture")), "default")
    return model, resolve_pre_tokenizer(fields.text("pre", usual), file_name)


class _Fields:
    """Typed access to the ``tokenizer.ggml.*`` values of one file."""

    def __init__(self, metadata: Mapping[str, Any], file_name: str) -> None:
        self._metadata = metadata
        self._file_name = file_name

    def error(self, name: str, found: str, advice: str = DAMAGED) -> TokenizerError:
        return TokenizerError(f"{self._file_name}: {PREFIX}{name} {found} ({advice})")

    def get(self, name: str) -> Any:
        return self._metadata.get(PREFIX + name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            found = "is missing" if value is None else f"is a {type(value).__name__}, not a string"
            raise self.error(name, found)
        return value[:100]

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool | np.bool_):
            raise self.error(name, f"is a {type(value).__name__}, not a boolean")
        return bool(value)

    def token_id(self, name: str, vocab_size: int, default: int | None) -> int | None:
        value = self.get(name)
        if value is None:
            return default if default is not None and default < vocab_size else None
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise self.error(name, f"is a {type(value).__name__}, not a whole number")
        if not 0 <= value < vocab_size:
            raise self.error(name, f"is {value}, but there are {vocab_size} tokens")
        return int(value)

    def byte_strings(self, name: str) -> Sequence[bytes]:
        value = self.get(name)
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, StringArray) and not (isinstance(value, list) and set(map(type, value)) <= {bytes}):
            raise self.error(name, f"is a {type(value).__name__}, not an array of strings")
        if not len(value):
            raise self.error(name, "is empty")
        return value

    def decode(self, name: str, items: Sequence[bytes], text: bytes) -> list[str]:
        """Decode all items at once: one by one takes three times as long for a whole vocabulary.

        Args:
            name: the field, for errors.
            items: the entries, none of them empty; only used to find a broken one.
            text: the entries, possibly without some characters, with newlines between.
        """
        try:
            texts = text.decode().split("\n")
            return texts if len(texts) == len(items) else [item.decode() for item in items]
        except UnicodeDecodeError:
            bad = next(i for i, item in enumerate(items) if not _is_utf8(item))
            raise self.error(name, f"entry {bad} is not UTF-8") from None

    def numbers(self, name: str, kinds: str, length: int) -> np.ndarray | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in kinds:
            found = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise self.error(name, f"has the wrong type ({found})")
        if len(value) != length:
            raise self.error(name, f"has {len(value)} entries for {length} tokens")
        return value


def _read_normalizing(fields: _Fields) -> Normalizing:
    rules, lowers = fields.get("precompiled_charsmap"), fields.flag("normalizer.lowercase", True)
    if rules is not None and (not isinstance(rules, np.ndarray) or rules.dtype.itemsize != 1 or rules.ndim != 1):
        raise fields.error("precompiled_charsmap", "is not an array of bytes")
    return Normalizing(
        rules=b"" if rules is None else rules.tobytes(),
        merges_spaces=fields.flag("remove_extra_whitespaces", False),
        lowers=lowers,
        strips_accents=fields.flag("normalizer.strip_accents", lowers),
    )


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_tokens(fields: _Fields) -> tuple[list[str], dict[str, int]]:
    raw = fields.byte_strings("tokens")
    texts = fields.decode("tokens", raw, joined(raw))
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if "" in ids:
        raise fields.error("tokens", f"entry {texts.index('')} is empty")
    if len(ids) != len(texts):
        twice = next(i for i, text in enumerate(texts) if ids[text] != i)
        raise fields.error("tokens", f"entries {twice} and {ids[texts[twice]]} are the same")
    longest = max(texts, key=len)
    if len(longest) > MAX_TOKEN_CHARS:
        raise fields.error("tokens", f"entry {ids[longest]} has {len(longest)} characters, over {MAX_TOKEN_CHARS}")
    if "\0" in "".join(texts):
        nul = next(i for i, text in enumerate(texts) if "\0" in text)
        raise fields.error("tokens", f"entry {nul} holds a NUL character")
    return texts, ids


def _read_types(
    fields: _Fields, texts: list[str], model: str, control_ids: set[int | None], unknown_id: int | None
) -> bytearray:
    """Return the token types; if the file has none, those that its other fields imply."""
    values = fields.numbers("token_type", "iu", len(texts))
    if values is not None:
        bad = np.flatnonzero((values < TokenType.UNDEFINED) | (values > TokenType.BYTE))
        if len(bad):
            raise fields.error("token_type", f"entry {bad[0]} is {values[bad[0]]}, not one of 0 to 6")
        return bytearray(values.astype(np.uint8).tobytes())
    types = bytearray([TokenType.NORMAL]) * len(texts)
    if model != "gpt2":
        for token_id, text in enumerate(texts):
            if _BYTE_TEXT.fullmatch(text):
                types[token_id] = TokenType.BYTE
    for control_id in control_ids:
        if control_id is not None:
            types[control_id] = TokenType.CONTROL
    if unknown_id is not None:
        types[unknown_id] = TokenType.UNKNOWN
    return types


def _read_scores(fields: _Fields, length: int) -> np.ndarray:
    scores = fields.numbers("scores", "f", length)
    if scores is None:
        raise fields.error("scores", "is missing")
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise fields.error("scores", f"entry {bad[0]} is {scores[bad[0]]}")
    return scores


def _read_merges(fields: _Fields) -> list[str]:
    """Return the pairs. ``check_merges`` and encoding check that each result is a token."""
    merges = fields.byte_strings("merges")
    lines = joined(merges)
    broken = _first_broken_pair(lines, merges)
    if broken is not None:
        raise fields.error("merges", f"entry {broken} is not two texts with one space between")
    return fields.decode("merges", merges, lines)


def check_merges(vocabulary: Vocabulary) -> None:
    """Check that the result of every merge is a token; with 280,000 merges too slow for every start.

    Raises:
        TokenizerError: one is not; the message names it.
    """
    results = (merge.replace(" ", "") for merge in vocabulary.merges)
    bad = next((result for result in results if result not in vocabulary.ids), None)
    if bad is not None:
        raise no_token(vocabulary, bad)


def no_token(vocabulary: Vocabulary, text: str) -> TokenizerError:
    """Return the error for the result of a merge that is not a token."""
    return TokenizerError(f"{vocabulary.file_name}: {PREFIX}merges make '{shown(text)}', which is no token ({DAMAGED})")


def _first_broken_pair(text: bytes, merges: Sequence[bytes]) -> int | None:
    """Return the index of the first merge that is not two texts with one space between; None if all are.

    Runs over hundreds of thousands of merges at every start, so it compares the positions of separators and examines
    single merges only if those differ, as for merges of newlines.

    Args:
        text: the merges with newlines between.
        merges: the same, one by one.
    """
    raw = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(raw == ord("\n")), len(raw))
    spaces = np.flatnonzero(raw == ord(" "))
    starts = np.concatenate(([0], ends[:-1] + 1))
    if len(ends) == len(spaces) == len(merges) and bool(((starts < spaces) & (spaces + 1 < ends)).all()):
        return None
    return next((i for i, merge in enumerate(merges) if not _PAIR.fullmatch(merge)), None)


def _read_byte_tokens(fields: _Fields, texts: list[str], types: bytearray) -> dict[int, int]:
    """Ids of the tokens that stand for one byte: all 256 bytes, or none (a vocabulary of plain characters)."""
    byte_values = {}
    for at in _ids_of(bytes(types), (TokenType.BYTE,)):
        match = _BYTE_TEXT.fullmatch(texts[at])
        if match is None:
            raise fields.error("tokens", f"entry {at} is a byte token but not written as <0x00> to <0xFF>")
        byte_values[at] = int(match[1], 16)
    missing = set(range(256)) - set(byte_values.values())
    if byte_values and missing:
        raise fields.error("tokens", f"lacks the byte token <0x{min(missing):02X}>")
    return byte_values


def _find_end_tokens(ids: dict[str, int], types: bytearray) -> set[int]:
    """Ids of the tokens known by their text to end a reply; makes them control tokens, as llama.cpp does."""
    found = {ids[text] for text in END_TEXTS if text in ids}
    special = (TokenType.CONTROL, TokenType.USER_DEFINED)
    found |= {ids[text] for text in AMBIGUOUS_END_TEXTS if text in ids and types[ids[text]] in special}
    for token_id in found:
        types[token_id] = TokenType.CONTROL
    return found - {ids[text] for others, text in _NO_ENDS if text in ids and others <= ids.keys()}


def _find_rstrip_tokens(metadata: Mapping[str, Any], texts: list[str], types: bytearray) -> frozenset[int]:
    """Return special tokens that swallow white space; GGUF has no field for it, llama.cpp uses the model's name.

    Source: ggml-org/llama.cpp, src/llama-vocab.cpp, per-token attributes of Phi-3.
    """
    name = metadata.get("general.name")
    if not isinstance(name, str) or not any(part in name.lower() for part in ("phi-3", "phi3")):
        return frozenset()
    keep = {"<unk>", "<s>", "<|endoftext|>"}
    special = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    return frozenset(i for i in _ids_of(bytes(types), special) if texts[i] not in keep)


def _ids_of(types: bytes, wanted: tuple[TokenType, ...]) -> list[int]:
    return np.flatnonzero(np.isin(np.frombuffer(types, np.uint8), wanted)).tolist()  # type: ignore[no-any-return]
