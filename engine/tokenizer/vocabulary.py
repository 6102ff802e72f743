"""The vocabulary of a GGUF file: tokens, their types and the special ids.

This module reads and checks the ``tokenizer.ggml.*`` keys of an untrusted file. Values that pass
:func:`read_vocabulary` may be indexed without further checks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from engine.errors import TokenizerError, printable
from engine.gguf.strings import StringArray, join_with_zeros
from engine.tokenizer.infill_marks import NO_MARKS, InfillMarks, find_marks
from engine.tokenizer.pretokenize import PRE_TOKENIZERS, resolve_pre_tokenizer

PREFIX = "tokenizer.ggml."
BAD_FILE_ADVICE = "the file was made wrongly: look for another one of this model"

MAX_TOKEN_CHARS = 1 << 16
"""Limit on the characters of a token; real tokens have a few hundred bytes at most."""


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
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<end_of_turn>",
    }
    | {"<|return|>", "<|call|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"}
    | {"<turn|>", "<|tool_response>", "<|flush|>", "<|calls|>", "[e~["}
    | {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
)
"""Tokens that end a reply whatever their type (llama.cpp, llama-vocab.cpp, ``special_eog_ids``)."""

AMBIGUOUS_END_TEXTS = frozenset(
    {"</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"}
    | {
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
    }
)
"""Tokens that end a reply only if the file marks them as special. In Qwen's vocabulary ``</s>`` is
a word."""

_NO_ENDS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|calls|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),
)
"""Tokens that end no reply if the vocabulary has some other tokens: gpt-oss ends each channel
of a reply with ``<|end|>``."""

_USUAL_PRE = {"qwen2": "qwen2", "qwen3": "qwen2"}
"""Pre-tokenizer by architecture, for files that are older than ``tokenizer.ggml.pre`` (llama.cpp,
April 2024)."""
_OTHER_MODELS = {"rwkv": "RWKV", "plamo2": "PLaMo-2"}
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2},
    "bert": {"bos": 101, "seperator": 102, "unknown": 100},
}
"""Ids that files may leave out; ``seperator`` is GGUF's spelling."""
_SCORED = ("llama", "t5")
"""Models whose tokens have scores."""
_UNMERGED = ("llama", "t5", "bert")
"""Models without a list of merges."""
_PAIR = re.compile(rb"[^ ]+ [^ ]+")
_BYTE_TEXT = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Normalizing:
    """Normalisation of text before Unigram and WordPiece cut it.

    Attributes:
        rules: SentencePiece's table of rewritten characters; empty if there is none.
        merges_spaces: whether a run of spaces counts as one, and a text begins with a space.
        lowers: whether capital letters become small.
        strips_accents: whether accents and other marks are removed.
    """

    rules: bytes = b""
    merges_spaces: bool = False
    lowers: bool = True
    strips_accents: bool = True


@dataclass(frozen=True)
class Vocabulary:
    """A checked vocabulary.

    Attributes:
        file_name: name of the file for messages.
        model: ``llama`` (SentencePiece-style), ``gpt2`` (BPE), ``gemma4`` (BPE on characters),
            ``t5`` (Unigram) or ``bert`` (WordPiece).
        pre: name in ``PRE_TOKENIZERS``; SentencePiece does not use it.
        texts: (vocab_size,) texts of the tokens in the file, with U+FFFD for invalid UTF-8.
        ids: ids by text; of several tokens with one text the last, as in llama.cpp.
        types: (vocab_size,) one :class:`TokenType` per token.
        scores: (vocab_size,) float32; None for BPE by merges.
        merges: ``left right`` pairs, the strongest first; empty for ``llama``.
        byte_values: bytes by id, for tokens that are one raw byte.
        without_text: bytes by id, for tokens that are empty or not UTF-8; no text is cut into them.
        end_ids: ids of tokens that end a turn or a text.
        rstrip_ids: ids of special tokens that swallow the white space after them.
        infill: marks for filling in the middle.
        normalizing: normalisation of ``t5`` and ``bert``.
        is_pre_guessed: whether neither the file nor its architecture names the pre-tokenizer.
        ignored: fields of the file that are ignored, a few words each.
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
    infill: InfillMarks = NO_MARKS
    is_pre_guessed: bool = False
    normalizing: Normalizing = Normalizing()
    without_text: Mapping[int, bytes] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def ids_of(self, *types: TokenType) -> list[int]:
        """Return the ids of all tokens of the given types, in ascending order."""
        return _ids_of(self.types, types)


def read_vocabulary(metadata: Mapping[str, Any], file_name: str) -> Vocabulary:
    """Read and check the vocabulary in a file's metadata.

    Raises:
        TokenizerError: a field is missing, has the wrong type, is out of range, or contradicts
            another field.
    """
    fields = _Fields(metadata, file_name)
    model, pre = kind_of_vocabulary(metadata, file_name)
    texts, ids, without_text = _read_tokens(fields)
    default_ids = _DEFAULT_IDS.get(model, {})
    bos_id, eos_id, unknown_id, eot_id, eom_id, separator_id = (
        fields.token_id(f"{name}_token_id", len(texts), default_ids.get(name))
        for name in ("bos", "eos", "unknown", "eot", "eom", "seperator")
    )
    if model == "bert":  # a text is enclosed by two tokens
        eos_id = separator_id
    types = _read_types(fields, texts, model, control_ids={bos_id, eos_id}, unknown_id=unknown_id)
    declared_ends = {token_id for token_id in (eos_id, eot_id, eom_id) if token_id is not None}
    infill, spelled_marks = find_marks(lambda key: fields.token_id(key, len(texts)), ids)
    for token_id in spelled_marks:
        types[token_id] = TokenType.CONTROL
    end_ids = _find_end_tokens(ids, types) | declared_ends | infill.end_ids
    add_bos = fields.flag("add_bos_token", model == "llama" or PRE_TOKENIZERS[pre].add_bos)
    add_bos = add_bos or model in ("gemma4", "bert")
    add_eos = model == "bert" or fields.flag("add_eos_token", model == "t5")
    scores = _read_scores(fields, len(texts)) if model in _SCORED else None
    merges = [] if model in _UNMERGED else _read_merges(fields)
    return Vocabulary(
        file_name=file_name,
        model=model,
        pre=pre,
        texts=texts,
        ids=ids,
        types=bytes(types),
        scores=scores,
        merges=merges,
        byte_values=_read_byte_tokens(texts, types),
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=unknown_id,
        add_bos=add_bos and bos_id is not None,
        add_eos=add_eos and eos_id is not None,
        add_space_prefix=model in _SCORED and fields.flag("add_space_prefix", model == "llama"),
        end_ids=frozenset(end_ids),
        infill=infill,
        rstrip_ids=_find_rstrip_tokens(metadata, texts, types),
        is_pre_guessed=model == "gpt2" and pre == "default" and fields.get("pre") is None,
        normalizing=_read_normalizing(fields, pre),
        without_text=without_text,
        ignored=fields.ignored,
    )


def kind_of_vocabulary(metadata: Mapping[str, Any], file_name: str) -> tuple[str, str]:
    """Return the tokenizer model and pre-tokenizer, from the header's scalars alone.

    Returns:
        ``llama``, ``gpt2``, ``gemma4``, ``t5`` or ``bert``, and a key of ``PRE_TOKENIZERS``;
        ``whitespace`` is such a key, and a ``gpt2``.

    Raises:
        TokenizerError: the model or the pre-tokenizer is not supported.
    """
    fields = _Fields(metadata, file_name)
    model = fields.text("model")
    if model in _OTHER_MODELS:
        raise fields.error(
            "model", f"is '{model}'", f"{_OTHER_MODELS[model]} vocabularies are not supported"
        )
    if model == "whitespace":
        return "gpt2", model
    if model not in ("llama", "gpt2", "gemma4", "t5", "bert"):
        raise fields.error(
            "model",
            f"is '{printable(model)}'",
            "supported: llama, gpt2, gemma4, t5, bert, whitespace",
        )
    if model != "gpt2":
        pre = "gemma4" if model == "gemma4" else "default"
        return model, pre
    usual_pre = _USUAL_PRE.get(str(metadata.get("general.architecture")), "default")
    return model, resolve_pre_tokenizer(fields.text("pre", usual_pre), file_name)


class _Fields:
    """Typed access to the ``tokenizer.ggml.*`` values of one file."""

    def __init__(self, metadata: Mapping[str, Any], file_name: str) -> None:
        self._metadata = metadata
        self._file_name = file_name
        self.ignored: list[str] = []

    def error(self, name: str, problem: str, advice: str = BAD_FILE_ADVICE) -> TokenizerError:
        return TokenizerError(f"{self._file_name}: {PREFIX}{name} {problem} ({advice})")

    def get(self, name: str) -> Any:
        return self._metadata.get(PREFIX + name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            if value is None:
                problem = "is missing"
            else:
                problem = f"is a {type(value).__name__}, not a string"
            raise self.error(name, problem)
        return value[:100]

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool | np.bool_ | int | np.integer):
            raise self.error(name, f"is a {type(value).__name__}, not a boolean")
        return bool(value)

    def token_id(self, name: str, vocab_size: int, default: int | None = None) -> int | None:
        value = self.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | np.integer)
        ):
            raise self.error(name, f"is a {type(value).__name__}, not a whole number")
        if value is not None and 0 <= value < vocab_size:
            return int(value)
        if value is not None:  # 4294967295 is the -1 of a converter that has no such token
            self.ignored.append(f"{PREFIX}{name} is {value}, but there are {vocab_size} tokens")
        if default is not None and default < vocab_size:
            return default
        return None

    def byte_strings(self, name: str) -> Sequence[bytes]:
        value = self.get(name)
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, StringArray) and not (
            isinstance(value, list) and set(map(type, value)) <= {bytes}
        ):
            raise self.error(name, f"is a {type(value).__name__}, not an array of strings")
        return value

    def numbers(self, name: str, kinds: str, length: int) -> np.ndarray | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in kinds:
            if isinstance(value, np.ndarray):
                type_name = f"array of {value.dtype}"
            else:
                type_name = type(value).__name__
            raise self.error(name, f"has the wrong type ({type_name})")
        if len(value) < length:
            raise self.error(name, f"has {len(value)} entries for {length} tokens")
        return value[:length]


def _read_normalizing(fields: _Fields, pre: str) -> Normalizing:
    rules = fields.get("precompiled_charsmap")
    lowers = fields.flag("normalizer.lowercase", pre != "whitespace")
    if rules is not None and (
        not isinstance(rules, np.ndarray) or rules.dtype.itemsize != 1 or rules.ndim != 1
    ):
        raise fields.error("precompiled_charsmap", "is not an array of bytes")
    return Normalizing(
        rules=b"" if rules is None else rules.tobytes(),
        merges_spaces=fields.flag("remove_extra_whitespaces", False),
        lowers=lowers,
        strips_accents=fields.flag("normalizer.strip_accents", lowers),
    )


def _decoded(strings: Sequence[bytes]) -> tuple[list[str], bool]:
    """Decode all strings at once, which is three times as fast as one by one.

    Returns:
        (texts, with U+FFFD for invalid UTF-8, whether all strings are UTF-8).
    """
    all_bytes = join_with_zeros(strings)
    try:
        texts = all_bytes.decode().split("\0")
        is_utf8 = True
    except UnicodeDecodeError:
        texts = all_bytes.decode("utf-8", "replace").split("\0")
        is_utf8 = False
    if len(texts) != len(strings):  # a string has a zero byte
        texts = [string.decode("utf-8", "replace") for string in strings]
    return texts, is_utf8


def _read_tokens(fields: _Fields) -> tuple[list[str], dict[str, int], dict[int, bytes]]:
    """Return the texts, the ids by text, and the bytes of tokens that no text is cut into."""
    raw = fields.byte_strings("tokens")
    if not len(raw):
        raise fields.error("tokens", "is empty")
    texts, is_utf8 = _decoded(raw)
    longest = max(texts, key=len)
    if len(longest) > MAX_TOKEN_CHARS:
        problem = (
            f"entry {texts.index(longest)} has {len(longest)} characters, over {MAX_TOKEN_CHARS}"
        )
        raise fields.error("tokens", problem)
    if "\0" in "".join(texts):  # in llama.cpp a NUL ends a text
        texts = [text.split("\0", 1)[0] for text in texts]
    ids = dict(zip(texts, range(len(texts)), strict=True))
    without_text = {}
    if "" in ids:
        without_text = {i: b"" for i, text in enumerate(texts) if not text}
    if not is_utf8:
        bad = (i for i, text in enumerate(texts) if "\ufffd" in text)
        without_text |= {i: raw[i] for i in bad if raw[i] != texts[i].encode()}
    for i in without_text:
        ids.pop(texts[i], None)
    return texts, ids, without_text


def _read_types(
    fields: _Fields,
    texts: list[str],
    model: str,
    control_ids: set[int | None],
    unknown_id: int | None,
) -> bytearray:
    """Return the token types; if the file has none, they follow from its other fields."""
    values = fields.numbers("token_type", "iu", len(texts))
    if values is not None:
        is_known = (values >= TokenType.UNDEFINED) & (values <= TokenType.BYTE)
        return bytearray(np.where(is_known, values, TokenType.UNDEFINED).astype(np.uint8).tobytes())
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
    """Return the scores. They are zero if the file has none, as in llama.cpp; NaN becomes
    -infinity."""
    scores = fields.numbers("scores", "fiu", length)
    if scores is None:
        return np.zeros(length, np.float32)
    return np.where(np.isnan(scores), -np.inf, scores).astype(np.float32)


def _read_merges(fields: _Fields) -> list[str]:
    """Return the pairs; entries that are not pairs are left out."""
    merges: Sequence[bytes] = fields.byte_strings("merges")
    if not _are_pairs(join_with_zeros(merges), len(merges)):
        merges = [merge for merge in merges if _PAIR.fullmatch(merge)]
    if len(merges):
        return _decoded(merges)[0]
    return []


def check_merges(vocabulary: Vocabulary) -> None:
    """Check that the result of every merge is a token. With 280,000 merges this is too slow for
    every start.

    Raises:
        TokenizerError: a result is not a token; the message names it.
    """
    results = (merge.replace(" ", "") for merge in vocabulary.merges)
    bad = next((result for result in results if result not in vocabulary.ids), None)
    if bad is not None:
        problem = f"merges make '{printable(bad)}', which is no token"
        raise TokenizerError(f"{vocabulary.file_name}: {PREFIX}{problem} ({BAD_FILE_ADVICE})")


def _are_pairs(text: bytes, n_merges: int) -> bool:
    """Whether all merges are two texts with one space between them.

    It compares the positions of separators, which is fast for hundreds of thousands of merges.

    Args:
        text: merges, separated by zero bytes.
        n_merges: number of merges.
    """
    raw = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(raw == 0), len(raw))
    spaces = np.flatnonzero(raw == ord(" "))
    starts = np.concatenate(([0], ends[:-1] + 1))
    if not len(ends) == len(spaces) == n_merges:
        return False
    return bool(((starts < spaces) & (spaces + 1 < ends)).all())


def _read_byte_tokens(texts: list[str], types: bytearray) -> dict[int, int]:
    """Return the bytes of the byte tokens; tokens with another spelling become ordinary ones."""
    byte_values = {}
    for token_id in _ids_of(bytes(types), (TokenType.BYTE,)):
        match = _BYTE_TEXT.fullmatch(texts[token_id])
        if match is None:
            types[token_id] = TokenType.NORMAL
        else:
            byte_values[token_id] = int(match[1], 16)
    return byte_values


def _find_end_tokens(ids: dict[str, int], types: bytearray) -> set[int]:
    """Return the ids of tokens that end a reply because of their text, and make them control
    tokens, as in llama.cpp."""
    end_ids = {ids[text] for text in END_TEXTS if text in ids}
    special = (TokenType.CONTROL, TokenType.USER_DEFINED)
    end_ids |= {
        ids[text] for text in AMBIGUOUS_END_TEXTS if text in ids and types[ids[text]] in special
    }
    for token_id in end_ids:
        types[token_id] = TokenType.CONTROL
    for neighbours, text in _NO_ENDS:
        if text in ids and neighbours <= ids.keys():
            end_ids.discard(ids[text])
    return end_ids


def _find_rstrip_tokens(
    metadata: Mapping[str, Any], texts: list[str], types: bytearray
) -> frozenset[int]:
    """Return special tokens that swallow white space. GGUF has no field for them; llama.cpp goes by
    the model's name.

    Source: ggml-org/llama.cpp, src/llama-vocab.cpp, per-token attributes of Phi-3.
    """
    name = metadata.get("general.name")
    if not isinstance(name, str) or not any(family in name.lower() for family in ("phi-3", "phi3")):
        return frozenset()
    excluded = {"<unk>", "<s>", "<|endoftext|>"}
    special = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    return frozenset(i for i in _ids_of(bytes(types), special) if texts[i] not in excluded)


def _ids_of(types: bytes, selected: tuple[TokenType, ...]) -> list[int]:
    is_selected = np.isin(np.frombuffer(types, np.uint8), selected)
    ids: list[int] = np.flatnonzero(is_selected).tolist()
    return ids
