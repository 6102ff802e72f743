"""The vocabulary of a GGUF file, checked once: the tokens, their types and the special ids.

Reads the ``tokenizer.ggml.*`` keys; does not encode text. All values come from an untrusted file;
those that pass :func:`read_vocabulary` may be indexed without further checks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from engine.errors import TokenizerError, shown
from engine.gguf.strings import StringArray, joined
from engine.tokenizer.pretokenize import PRE_TOKENIZERS, resolve_pre_tokenizer

PREFIX = "tokenizer.ggml."
WRONGLY_MADE = "the file was made wrongly: look for another one of this model"

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
"""Tokens that end a reply whatever their declared type (llama.cpp, llama-vocab.cpp,
``special_eog_ids``)."""

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
"""Tokens that end a reply only if the file marks them as special: in Qwen's vocabulary ``</s>`` is
a word."""

_NO_ENDS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|calls|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),
)
"""Tokens that end no reply where others are next to them: gpt-oss ends each channel of a reply with
``<|end|>``."""

_USUAL_PRE = {"qwen2": "qwen2", "qwen3": "qwen2"}
"""Pre-tokenizer by architecture, for files from before ``tokenizer.ggml.pre`` (llama.cpp, April
2024)."""
_OTHER_MODELS = {"rwkv": "RWKV", "plamo2": "PLaMo-2"}
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2},
    "bert": {"bos": 101, "seperator": 102, "unknown": 100},
}
"""Ids that files may leave out; ``seperator`` is spelled as GGUF spells it."""
_SCORED = ("llama", "t5")
_UNMERGED = ("llama", "t5", "bert")
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
        model: ``llama`` (SentencePiece-style), ``gpt2`` (BPE), ``gemma4`` (BPE on characters),
            ``t5`` (Unigram) or ``bert`` (WordPiece).
        pre: name in ``PRE_TOKENIZERS``; SentencePiece does not use it.
        texts: (vocab_size,) the token texts as the file spells them, U+FFFD for what is not UTF-8.
        ids: text to id; of several tokens with one text the last, as in llama.cpp.
        types: (vocab_size,) one :class:`TokenType` per token.
        scores: (vocab_size,) float32, or None for BPE by merges.
        merges: ``left right`` pairs, the earlier the stronger; empty for ``llama``.
        byte_values: id to byte, for tokens that are one raw byte.
        without_text: id to bytes, for tokens that no text is cut into: they are empty or not UTF-8.
        end_ids: tokens that end a turn or a text.
        rstrip_ids: special tokens that swallow the white space after them.
        normalizing: of ``t5`` and ``bert``.
        is_pre_guessed: True if neither the file nor its architecture names the pre-tokenizer.
        ignored: what of the file does not count, in a few words each.
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
    without_text: Mapping[int, bytes] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def ids_of(self, *types: TokenType) -> list[int]:
        """Ids of all tokens of the given types, ascending."""
        return _ids_of(self.types, types)


def read_vocabulary(metadata: Mapping[str, Any], file_name: str) -> Vocabulary:
    """Read and check the vocabulary in a file's metadata.

    Raises:
        TokenizerError: a field is missing, of the wrong type, out of range, or contradicts another
            one.
    """
    fields = _Fields(metadata, file_name)
    model, pre = kind_of_vocabulary(metadata, file_name)
    texts, ids, without_text = _read_tokens(fields)
    default_ids = _DEFAULT_IDS.get(model, {})
    bos_id, eos_id, unknown_id, eot_id, eom_id, separator_id = (
        fields.token_id(f"{name}_token_id", len(texts), default_ids.get(name))
        for name in ("bos", "eos", "unknown", "eot", "eom", "seperator")
    )
    if model == "bert":  # a text is between its two marks
        eos_id = separator_id
    types = _read_types(fields, texts, model, control_ids={bos_id, eos_id}, unknown_id=unknown_id)
    declared_ends = {token_id for token_id in (eos_id, eot_id, eom_id) if token_id is not None}
    end_ids = _find_end_tokens(ids, types) | declared_ends
    add_bos = fields.flag(
        "add_bos_token", model == "llama" or PRE_TOKENIZERS[pre].add_bos
    ) or model in (
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
        byte_values=_read_byte_tokens(texts, types),
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=unknown_id,
        add_bos=add_bos and bos_id is not None,
        add_eos=(model == "bert" or fields.flag("add_eos_token", model == "t5"))
        and eos_id is not None,
        add_space_prefix=model in _SCORED and fields.flag("add_space_prefix", model == "llama"),
        end_ids=frozenset(end_ids),
        rstrip_ids=_find_rstrip_tokens(metadata, texts, types),
        is_pre_guessed=model == "gpt2" and pre == "default" and fields.get("pre") is None,
        normalizing=_read_normalizing(fields, pre),
        without_text=without_text,
        ignored=fields.ignored,
    )


def kind_of_vocabulary(metadata: Mapping[str, Any], file_name: str) -> tuple[str, str]:
    """Return the tokenizer model and pre-tokenizer; needs only the header's scalars.

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
            "model", f"is '{shown(model)}'", "supported: llama, gpt2, gemma4, t5, bert, whitespace"
        )
    if model != "gpt2":
        return model, "gemma4" if model == "gemma4" else "default"
    usual = _USUAL_PRE.get(str(metadata.get("general.architecture")), "default")
    return model, resolve_pre_tokenizer(fields.text("pre", usual), file_name)


class _Fields:
    """Typed access to the ``tokenizer.ggml.*`` values of one file."""

    def __init__(self, metadata: Mapping[str, Any], file_name: str) -> None:
        self._metadata = metadata
        self._file_name = file_name
        self.ignored: list[str] = []

    def error(self, name: str, found: str, advice: str = WRONGLY_MADE) -> TokenizerError:
        return TokenizerError(f"{self._file_name}: {PREFIX}{name} {found} ({advice})")

    def get(self, name: str) -> Any:
        return self._metadata.get(PREFIX + name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            if value is None:
                found = "is missing"
            else:
                found = f"is a {type(value).__name__}, not a string"
            raise self.error(name, found)
        return value[:100]

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool | np.bool_ | int | np.integer):
            raise self.error(name, f"is a {type(value).__name__}, not a boolean")
        return bool(value)

    def token_id(self, name: str, vocab_size: int, default: int | None) -> int | None:
        value = self.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | np.integer)
        ):
            raise self.error(name, f"is a {type(value).__name__}, not a whole number")
        if value is not None and 0 <= value < vocab_size:
            return int(value)
        if value is not None:  # 4294967295 is the -1 of a converter that found none
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
                found = f"array of {value.dtype}"
            else:
                found = type(value).__name__
            raise self.error(name, f"has the wrong type ({found})")
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


def _decoded(items: Sequence[bytes]) -> tuple[list[str], bool]:
    """Decode all strings at once: one by one takes three times as long for a whole vocabulary.

    Returns:
        The texts, with U+FFFD for what is not UTF-8, and whether there was such.
    """
    together = joined(items)
    try:
        texts = together.decode().split("\0")
        is_utf8 = True
    except UnicodeDecodeError:
        texts = together.decode("utf-8", "replace").split("\0")
        is_utf8 = False
    return texts if len(texts) == len(items) else [
        item.decode("utf-8", "replace") for item in items
    ], is_utf8


def _read_tokens(fields: _Fields) -> tuple[list[str], dict[str, int], dict[int, bytes]]:
    """Return the texts, their ids, and the bytes of tokens that no text is cut into."""
    raw = fields.byte_strings("tokens")
    if not len(raw):
        raise fields.error("tokens", "is empty")
    texts, is_utf8 = _decoded(raw)
    longest = max(texts, key=len)
    if len(longest) > MAX_TOKEN_CHARS:
        found = (
            f"entry {texts.index(longest)} has {len(longest)} characters, over {MAX_TOKEN_CHARS}"
        )
        raise fields.error("tokens", found)
    if "\0" in "".join(texts):  # llama.cpp reads them as strings that a NUL ends
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
    """Return the token types; if the file has none, those that its other fields imply."""
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
    """Return the scores; all zero where there are none, as in llama.cpp, and the lowest for what is
    no number."""
    scores = fields.numbers("scores", "fiu", length)
    if scores is None:
        return np.zeros(length, np.float32)
    return np.where(np.isnan(scores), -np.inf, scores).astype(np.float32)


def _read_merges(fields: _Fields) -> list[str]:
    """Return the pairs; entries that are none are left out, since they merge nothing.

    Encoding takes the characters by themselves where a result is no token.
    """
    merges: Sequence[bytes] = fields.byte_strings("merges")
    if not _are_pairs(joined(merges), len(merges)):
        merges = [merge for merge in merges if _PAIR.fullmatch(merge)]
    if len(merges):
        return _decoded(merges)[0]
    return []


def check_merges(vocabulary: Vocabulary) -> None:
    """Check that the result of every merge is a token; with 280,000 merges too slow for every
    start.

    Raises:
        TokenizerError: one is not; the message names it.
    """
    results = (merge.replace(" ", "") for merge in vocabulary.merges)
    bad = next((result for result in results if result not in vocabulary.ids), None)
    if bad is not None:
        found = f"merges make '{shown(bad)}', which is no token"
        raise TokenizerError(f"{vocabulary.file_name}: {PREFIX}{found} ({WRONGLY_MADE})")


def _are_pairs(text: bytes, n_merges: int) -> bool:
    """Whether all merges are certainly two texts with one space between.

    Runs over hundreds of thousands of merges at every start, so it compares the positions of
    separators.

    Args:
        text: the merges with zero bytes between.
        n_merges: their number.
    """
    raw = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(raw == 0), len(raw))
    spaces = np.flatnonzero(raw == ord(" "))
    starts = np.concatenate(([0], ends[:-1] + 1))
    if not len(ends) == len(spaces) == n_merges:
        return False
    return bool(((starts < spaces) & (spaces + 1 < ends)).all())


def _read_byte_tokens(texts: list[str], types: bytearray) -> dict[int, int]:
    """Return the bytes of the tokens that are single bytes; those spelled otherwise become ordinary
    tokens."""
    byte_values = {}
    for at in _ids_of(bytes(types), (TokenType.BYTE,)):
        match = _BYTE_TEXT.fullmatch(texts[at])
        if match is None:
            types[at] = TokenType.NORMAL
        else:
            byte_values[at] = int(match[1], 16)
    return byte_values


def _find_end_tokens(ids: dict[str, int], types: bytearray) -> set[int]:
    """Ids of the tokens known by their text to end a reply; makes them control tokens, as llama.cpp
    does."""
    found = {ids[text] for text in END_TEXTS if text in ids}
    special = (TokenType.CONTROL, TokenType.USER_DEFINED)
    found |= {
        ids[text] for text in AMBIGUOUS_END_TEXTS if text in ids and types[ids[text]] in special
    }
    for token_id in found:
        types[token_id] = TokenType.CONTROL
    return found - {ids[text] for others, text in _NO_ENDS if text in ids and others <= ids.keys()}


def _find_rstrip_tokens(
    metadata: Mapping[str, Any], texts: list[str], types: bytearray
) -> frozenset[int]:
    """Return special tokens that swallow white space; GGUF has no field for it, llama.cpp uses the
    model's name.

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
