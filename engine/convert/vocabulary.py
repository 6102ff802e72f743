"""The vocabulary of a model's directory as a GGUF file has it: ``tokenizer.json``, or
``tokenizer.model``.

Types, scores and special ids are those of llama.cpp's converter (ggml-org/llama.cpp,
convert_hf_to_gguf.py and gguf-py/gguf/vocab.py). Scores of a vocabulary that comes without them are
the order of its merges: they mean no more.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from engine.convert.bounded import (
    MAX_JSON_BYTES,
    JsonObject,
    is_utf8,
    read_bytes,
    read_object,
    shown_value,
)
from engine.convert.pre_tokenizer import find_pre_tokenizer
from engine.convert.sentencepiece import BPE, UNIGRAM, parse_sentencepiece
from engine.errors import ConversionError, shown
from engine.gguf.header import MAX_STRINGS
from engine.tokenizer.vocabulary import END_TEXTS, MAX_TOKEN_CHARS, TokenType

JSON = "tokenizer.json"
MODEL = "tokenizer.model"
SETTINGS = "tokenizer_config.json"
MAX_MODEL_BYTES = 32 << 20
"""Limit on a file of SentencePiece: 260,000 pieces take 5 MB."""
MAX_RULES_BYTES = 8 << 20
"""Limit on the table of rewritten characters; those in use have a quarter of a megabyte."""
MAX_TEMPLATE_BYTES = 1 << 20
SPACE = "\u2581"
_ADDED_SCORE = -1000.0
_UNUSED_SCORE = -10000.0
_SPECIAL_IDS = {
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding",
    "cls": "cls", "mask": "mask",
}  # fmt: skip
"""Names in ``tokenizer_config.json``, and as GGUF spells them."""
_SEEM_SPECIAL = frozenset({"<pad>", "<mask>", "<2mass>", "[@BOS@]"})


@dataclass
class Tokens:
    """The tokens of a vocabulary before the keys are made of them.

    Attributes:
        model: ``tokenizer.ggml.model``.
        texts, types, scores: by id; ids that no token has are missing.
        keys: further keys, without their prefix.
        post: steps that put marks around a text, as tokenizer.json says it.
    """

    model: str
    texts: dict[int, bytes] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    post: Sequence[JsonObject] = ()

    def put(self, token_id: int, text: str | bytes, kind: int, score: float = 0.0) -> None:
        """Give an id a token."""
        if isinstance(text, str):
            self.texts[token_id] = text.encode()
        else:
            self.texts[token_id] = text
        self.types[token_id] = kind
        self.scores[token_id] = score


def vocabulary_keys(directory: Path, config: JsonObject, n_tokens: int) -> dict[str, Any]:
    """Return the ``tokenizer.*`` keys of a GGUF file.

    Args:
        config: of the model, which names some special tokens.
        n_tokens: rows of the embedding; ids that no token has become unused ones.

    Raises:
        ConversionError: there is no vocabulary, or it is damaged or of a kind that is not
            supported.
    """
    settings = JsonObject(read_object(directory / SETTINGS) or {}, SETTINGS)
    tokens = _read_tokens(directory)
    _add_tokens(tokens, settings)
    if n_tokens > MAX_STRINGS:
        raise config.fail(f"the embedding has {n_tokens} rows: at most {MAX_STRINGS} are supported")
    if (most := max(tokens.texts, default=-1) + 1) > n_tokens:
        raise config.fail(
            f"the vocabulary has {most} tokens, but the embedding only {n_tokens} rows"
        )
    keys: dict[str, Any] = {
        "model": tokens.model,
        "pre": "default",
        **_table(tokens, n_tokens),
        **tokens.keys,
    }
    keys |= _special_ids(settings, config, tokens) | _marks(tokens, settings)
    keys |= _further_ends(directory, config, keys, tokens)
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | _templates(
        directory, settings
    )


def _table(tokens: Tokens, n_tokens: int) -> dict[str, Any]:
    unused = [i for i in range(n_tokens) if i not in tokens.texts]
    for i in unused:
        tokens.put(i, f"[PAD{i}]", TokenType.UNUSED, _UNUSED_SCORE)
    everyone = range(n_tokens)
    table: dict[str, Any] = {
        "tokens": [tokens.texts[i] for i in everyone],
        "token_type": np.array([tokens.types[i] for i in everyone], np.int32),
    }
    if tokens.model in ("llama", "t5"):
        table["scores"] = np.array([tokens.scores[i] for i in everyone], np.float32)
    return table


def _read_tokens(directory: Path) -> Tokens:
    """Read tokenizer.json, unless it was made of a file of SentencePiece that has the scores."""
    found = read_object(directory / JSON, MAX_JSON_BYTES)
    tokenizer = JsonObject(found or {}, JSON)
    model = tokenizer.under("model")
    kind = model.word("type", "BPE" if "merges" in model.values else "")
    if found is None or model.flag("byte_fallback", False):
        content = read_bytes(directory / MODEL, MAX_MODEL_BYTES)
    else:
        content = None
    if content is not None:
        return _of_sentencepiece(content, tokenizer)
    if found is None:
        raise ConversionError(
            f"{shown(directory.name)}: has neither {JSON} nor {MODEL} (transformers makes the "
            f"first: "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"
        )
    makers = {"BPE": _of_bpe, "Unigram": _of_unigram, "WordPiece": _of_wordpiece}
    if kind not in makers:
        raise tokenizer.fail(
            f"its model is {shown(kind) or 'missing'}; supported: {', '.join(makers)}"
        )
    tokens = makers[kind](tokenizer, model)
    tokens.post = _post_steps(tokenizer)
    return tokens


def _of_bpe(tokenizer: JsonObject, model: JsonObject) -> Tokens:
    """Byte-level BPE keeps its merges; that of SentencePiece becomes scores."""
    vocabulary = _vocabulary(model)
    merges = _merges(model)
    if model.flag("byte_fallback", False):
        return _of_piece_merges(tokenizer, vocabulary, merges)
    normalizer = tokenizer.under("normalizer").word("type", "NFC")
    is_empty = normalizer == "Sequence" and not tokenizer.under("normalizer").objects("normalizers")
    if normalizer != "NFC" and not is_empty:
        raise tokenizer.fail(
            f"normalizer {shown(normalizer)} is not supported (get a GGUF file of this model)"
        )
    tokens = Tokens("gpt2", keys={"pre": find_pre_tokenizer(tokenizer.values, JSON)})
    for text, token_id in vocabulary.items():
        tokens.put(token_id, text, TokenType.NORMAL)
    tokens.keys["merges"] = [
        " ".join(part.replace(" ", "\u0120") for part in pair).encode() for pair in merges
    ]
    _add(tokens, tokenizer.objects("added_tokens"))
    return tokens


def _of_piece_merges(
    tokenizer: JsonObject, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> Tokens:
    tokens = Tokens("llama")
    rank: dict[str, int] = {}
    for left, right in merges:
        rank.setdefault(left + right, len(rank))
    for text, token_id in vocabulary.items():
        is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        if is_byte:
            kind = TokenType.BYTE
        else:
            kind = TokenType.NORMAL
        tokens.put(token_id, text, kind, 0.0 if is_byte else -float(rank.get(text, len(rank))))
    unknown = tokenizer.under("model").word("unk_token")
    _add(tokens, tokenizer.objects("added_tokens"))
    if unknown in vocabulary:
        tokens.types[vocabulary[unknown]] = TokenType.UNKNOWN
    tokens.keys["add_space_prefix"] = _begins_with_space(tokenizer)
    return tokens


def _begins_with_space(tokenizer: JsonObject) -> bool:
    """Whether a text is read as if a space were before it."""
    normalizer = tokenizer.under("normalizer")
    cutter = tokenizer.under("pre_tokenizer")
    prepends = any(
        step.get("type") == "Prepend" for step in (normalizer, *normalizer.objects("normalizers"))
    )
    return prepends or (
        cutter.get("type") == "Metaspace" and cutter.word("prepend_scheme", "always") != "never"
    )


def _of_unigram(tokenizer: JsonObject, model: JsonObject) -> Tokens:
    tokens = Tokens("t5")
    pieces = model.get("vocab")
    unknown = model.integer("unk_id", 0)
    if not isinstance(pieces, list) or not pieces:
        raise tokenizer.fail("model.vocab is no list of pieces (get the file again)")
    for token_id, piece in enumerate(pieces):
        is_sound = isinstance(piece, list) and len(piece) == 2 and _is_token(piece[0])
        if is_sound:
            score = JsonObject({"score": piece[1]}, JSON).number("score")
        else:
            score = 0.0
        if not is_sound:
            raise tokenizer.fail(f"model.vocab has no sound piece {token_id} (get the file again)")
        tokens.put(
            token_id,
            piece[0],
            TokenType.UNKNOWN if token_id == unknown else TokenType.NORMAL,
            score,
        )
    normalizer = tokenizer.under("normalizer")
    steps = [normalizer, *normalizer.objects("normalizers")]
    rules = next((_rules(step) for step in steps if step.get("type") == "Precompiled"), b"")
    merges_spaces = "{2,}" in str(normalizer.values) or "WhitespaceSplit" in str(
        tokenizer.get("pre_tokenizer")
    )
    tokens.keys |= _unigram_keys(rules, _begins_with_space(tokenizer), merges_spaces)
    _add(tokens, tokenizer.objects("added_tokens"))
    return tokens


def _rules(step: JsonObject) -> bytes:
    """Return the table of rewritten characters."""
    if step.get("precompiled_charsmap") is None:
        raise step.fail(
            "a normalizer of type Precompiled has no precompiled_charsmap (get the file again)"
        )
    text = step.word("precompiled_charsmap")
    if len(text) > MAX_RULES_BYTES:
        raise step.fail(
            f"precompiled_charsmap has over {MAX_RULES_BYTES >> 20} MiB, too much for what it is"
        )
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise step.fail("precompiled_charsmap is not in base 64 (get the file again)") from None


def _unigram_keys(rules: bytes, adds_space: bool, merges_spaces: bool) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "add_space_prefix": adds_space,
        "remove_extra_whitespaces": merges_spaces,
    }
    return keys | ({"precompiled_charsmap": np.frombuffer(rules, np.uint8)} if rules else {})


def _of_wordpiece(tokenizer: JsonObject, model: JsonObject) -> Tokens:
    """Pieces that begin a word have a space before them there, and those that go on with one have
    nothing."""
    tokens = Tokens("bert")
    for text, token_id in _vocabulary(model).items():
        is_marked = text.startswith("[") and text.endswith("]")
        if is_marked:
            whole = text
        elif text.startswith("##"):
            whole = text[2:]
        else:
            whole = SPACE + text
        tokens.put(token_id, whole, TokenType.NORMAL)
    _add(tokens, tokenizer.objects("added_tokens"))
    normalizer = tokenizer.under("normalizer")
    lowers = normalizer.flag("lowercase", True)
    accents = normalizer.flag("strip_accents", lowers)
    tokens.keys |= {"normalizer.lowercase": lowers, "normalizer.strip_accents": accents}
    return tokens


def _of_sentencepiece(content: bytes, tokenizer: JsonObject) -> Tokens:
    model = parse_sentencepiece(content, MODEL)
    tokens = Tokens(
        "llama" if model.model_type == BPE else "t5", keys={"add_space_prefix": model.adds_space}
    )
    if model.model_type == UNIGRAM:
        tokens.keys = _unigram_keys(model.rules, model.adds_space, model.merges_spaces)
    for token_id, (text, score, kind) in enumerate(model.pieces):
        tokens.put(token_id, text, kind, score)
    _add(tokens, tokenizer.objects("added_tokens"), _ADDED_SCORE)
    tokens.post = _post_steps(tokenizer)
    return tokens


def _vocabulary(model: JsonObject) -> dict[str, int]:
    found = model.get("vocab")
    if not isinstance(found, dict) or not found or not all(map(_is_id, found.values())):
        raise model.fail("model.vocab is no table of tokens and ids (get the file again)")
    if max(map(len, found)) > MAX_TOKEN_CHARS:
        raise model.fail(
            f"model.vocab has a token of over {MAX_TOKEN_CHARS} characters (get the file again)"
        )
    model.check_texts("vocab", found)
    return found


def _merges(model: JsonObject) -> list[tuple[str, str]]:
    found = model.get("merges")
    listed: list[Any] = found if isinstance(found, list) else [None]
    pairs = [one.split(" ") if isinstance(one, str) else one for one in listed]
    if not all(
        isinstance(one, list) and len(one) == 2 and all(map(_is_text, one)) for one in pairs
    ):
        raise model.fail("model.merges is no list of pairs (get the file again)")
    model.check_texts("merges", (part for pair in pairs for part in pair))
    return [(pair[0], pair[1]) for pair in pairs]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_id(value: Any) -> TypeGuard[int]:
    """Whether a value is a number that an id can be."""
    return type(value) is int and 0 <= value < 1 << 31


def _is_token(value: Any) -> bool:
    """Whether a value is a text that a token can have."""
    return isinstance(value, str) and len(value) <= MAX_TOKEN_CHARS and is_utf8(value)


def _add_tokens(tokens: Tokens, settings: JsonObject) -> None:
    """Take the tokens that tokenizer_config.json adds."""
    added = settings.under("added_tokens_decoder")
    listed = []
    for key in added.values:
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise settings.fail(
                f"added_tokens_decoder has {shown(key)} in place of a token's id (get the "
                f"file again)"
            )
        listed.append(JsonObject({**added.under(key).values, "id": int(key)}, SETTINGS))
    _add(tokens, listed, _ADDED_SCORE)


def _add(tokens: Tokens, added: Sequence[JsonObject], score: float = 0.0) -> None:
    """Give tokens that were added to a vocabulary their types: control tokens, and text that is
    never cut."""
    for entry in added:
        token_id = entry.get("id")
        text = entry.get("content")
        if not _is_id(token_id) or not _is_token(text):
            values = f"id {shown_value(token_id)} and content {shown_value(text)}"
            raise entry.fail(f"added_tokens has no sound entry of {values} (get the file again)")
        if (
            tokens.types.get(token_id) == TokenType.UNKNOWN
            and tokens.texts[token_id] == text.encode()
        ):
            continue
        is_special = entry.flag("special", False) or _seems_special(text)
        if not is_special and tokens.model != "bert":
            text = text.replace(SPACE, " ")
        tokens.put(
            token_id, text, TokenType.CONTROL if is_special else TokenType.USER_DEFINED, score
        )


def _seems_special(text: str) -> bool:
    frames = ("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">")
    return text in _SEEM_SPECIAL or any(
        text.startswith(start) and text.endswith(end) for start, end in frames
    )


def _special_ids(settings: JsonObject, config: JsonObject, tokens: Tokens) -> dict[str, int]:
    """Return the ids of special tokens, by the tokenizer's settings, or else by the model's."""
    ids = {text: token_id for token_id, text in tokens.texts.items()}
    keys = {}
    for name, key in _SPECIAL_IDS.items():
        text = _special_text(settings, f"{name}_token")
        token_id = ids.get(text.encode("utf-8", "replace"))
        if token_id is None:
            token_id = next(iter(config.ids(f"{name}_token_id")), None)
        if token_id is not None and token_id in tokens.texts:
            keys[f"{key}_token_id"] = token_id
    unknown = next(
        (token_id for token_id, kind in tokens.types.items() if kind == TokenType.UNKNOWN), None
    )
    if unknown is not None:
        keys.setdefault("unknown_token_id", unknown)
    for name, instead in (("bos", "cls"), ("eos", "seperator")):  # as encoders call them
        if f"{name}_token_id" not in keys and f"{instead}_token_id" in keys:
            keys[f"{name}_token_id"] = keys[f"{instead}_token_id"]
    return keys


def _special_text(settings: JsonObject, name: str) -> str:
    """Return the text of a special token; "" if it has none.

    The token may be an object with more about it.
    """
    if isinstance(settings.get(name), dict):
        return settings.under(name).word("content")
    return settings.word(name)


def _marks(tokens: Tokens, settings: JsonObject) -> dict[str, bool]:
    """Return whether a text begins and ends with a mark: as the settings say, or as the
    post-processor does it."""
    marks = {}
    before, after = _around(tokens.post)
    for name, found in (("bos", before), ("eos", after)):
        key = f"add_{name}_token"
        if settings.get(key) is not None or found is not None:
            marks[key] = settings.flag(key, bool(found))
    return marks


def _around(post: Sequence[JsonObject]) -> tuple[bool | None, bool | None]:
    """Return whether special tokens are put before and after a text; None where nothing says it."""
    for step in post:
        if step.get("type") == "RobertaProcessing":
            return True, True
        if step.get("type") == "TemplateProcessing" and (single := step.objects("single")):
            return "SpecialToken" in single[0].values, "SpecialToken" in single[-1].values
    return None, None


def _post_steps(tokenizer: JsonObject) -> Sequence[JsonObject]:
    """Return the steps that put marks around a text: those of a sequence, or the only one."""
    post = tokenizer.under("post_processor")
    if post.get("processors") is None:
        return [post]
    return post.objects("processors")


def _further_ends(
    directory: Path, config: JsonObject, keys: Mapping[str, Any], tokens: Tokens
) -> dict[str, int]:
    """Return what ends a reply by the generation's settings and is not known by its text."""
    name = "generation_config.json"
    generation = JsonObject(read_object(directory / name) or {}, name)
    if generation.get("eos_token_id") is not None:
        ends = generation.ids("eos_token_id")
    else:
        ends = config.ids("eos_token_id")
    known = {text.encode() for text in END_TEXTS}
    further = [
        one
        for one in ends
        if tokens.texts.get(one, b"") not in known and one != keys.get("eos_token_id")
    ]
    there = [one for one in further if one in tokens.texts]
    return dict(zip(("eot_token_id", "eom_token_id"), there, strict=False))


def _templates(directory: Path, settings: JsonObject) -> dict[str, Any]:
    """Return the chat templates: a file of its own counts more than the settings."""
    content = read_bytes(directory / "chat_template.jinja", MAX_TEMPLATE_BYTES)
    if content is not None:
        return {"tokenizer.chat_template": content.decode("utf-8", "replace")}
    holder = settings
    if settings.get("chat_template") is None:
        name = "chat_template.json"
        holder = JsonObject(read_object(directory / name) or {}, name)
    found = holder.get("chat_template")
    if not isinstance(found, list):
        text = holder.word("chat_template")
        holder.check_texts("chat_template", [text])
        if found is not None:
            return {"tokenizer.chat_template": text}
        return {}
    named = {
        one["name"]: one["template"]
        for one in found
        if isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("template"), str)
    }
    holder.check_texts("chat_template", named.values())
    kinds = {"default": "tokenizer.chat_template", "tool_use": "tokenizer.chat_template.tool_use"}
    return {key: named[name] for name, key in kinds.items() if name in named}
