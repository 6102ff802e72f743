"""Vocabulary keys of a GGUF file from ``tokenizer.json`` or ``tokenizer.model`` of a directory.

Types, scores and special ids are those of llama.cpp's converter (ggml-org/llama.cpp,
convert_hf_to_gguf.py and gguf-py/gguf/vocab.py). Without scores in the source, they are the order
of merges.
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
from engine.errors import ConversionError, printable
from engine.gguf.header import MAX_STRINGS
from engine.tokenizer.vocabulary import END_TEXTS, MAX_TOKEN_CHARS, TokenType

JSON = "tokenizer.json"
MODEL = "tokenizer.model"
SETTINGS = "tokenizer_config.json"
MAX_MODEL_BYTES = 32 << 20
"""Limit on the size of a SentencePiece file; 260,000 pieces have 5 MB."""
MAX_RULES_BYTES = 8 << 20
"""Limit on the table of rewritten characters; known tables have a quarter of a megabyte."""
MAX_TEMPLATE_BYTES = 1 << 20
SPACE = "\u2581"
_ADDED_SCORE = -1000.0
_UNUSED_SCORE = -10000.0
_SPECIAL_IDS = {
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding",
    "cls": "cls", "mask": "mask",
}  # fmt: skip
"""Names in ``tokenizer_config.json`` and in GGUF."""
_SEEM_SPECIAL = frozenset({"<pad>", "<mask>", "<2mass>", "[@BOS@]"})


@dataclass
class Tokens:
    """Tokens of a vocabulary, from which the keys are computed.

    Attributes:
        model: ``tokenizer.ggml.model``.
        texts, types, scores: Values by token id; unused ids are missing.
        keys: Further keys, without their prefix.
        post: Steps that put special tokens around a text, from tokenizer.json.
    """

    model: str
    texts: dict[int, bytes] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    post: Sequence[JsonObject] = ()

    def put(self, token_id: int, text: str | bytes, token_type: int, score: float = 0.0) -> None:
        """Set the token of an id."""
        if isinstance(text, str):
            self.texts[token_id] = text.encode()
        else:
            self.texts[token_id] = text
        self.types[token_id] = token_type
        self.scores[token_id] = score


def vocabulary_keys(directory: Path, config: JsonObject, n_tokens: int) -> dict[str, Any]:
    """Return the ``tokenizer.*`` keys of a GGUF file.

    Args:
        config: Settings of the model, which name some special tokens.
        n_tokens: Rows of the embedding; unused ids get placeholder tokens.

    Raises:
        ConversionError: There is no vocabulary, or it is damaged or not supported.
    """
    settings = JsonObject(read_object(directory / SETTINGS) or {}, SETTINGS)
    tokens = _read_tokens(directory)
    _add_tokens(tokens, settings)
    if n_tokens > MAX_STRINGS:
        raise config.fail(f"the embedding has {n_tokens} rows: at most {MAX_STRINGS} are supported")
    if (n_known := max(tokens.texts, default=-1) + 1) > n_tokens:
        raise config.fail(
            f"the vocabulary has {n_known} tokens, but the embedding only {n_tokens} rows"
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
    ids = range(n_tokens)
    table: dict[str, Any] = {
        "tokens": [tokens.texts[i] for i in ids],
        "token_type": np.array([tokens.types[i] for i in ids], np.int32),
    }
    if tokens.model in ("llama", "t5"):
        table["scores"] = np.array([tokens.scores[i] for i in ids], np.float32)
    return table


def _read_tokens(directory: Path) -> Tokens:
    """Read tokenizer.json, unless it comes from a SentencePiece file that has the scores."""
    values = read_object(directory / JSON, MAX_JSON_BYTES)
    tokenizer = JsonObject(values or {}, JSON)
    model = tokenizer.under("model")
    model_type = model.word("type", "BPE" if "merges" in model.values else "")
    if values is None or model.flag("byte_fallback", False):
        content = read_bytes(directory / MODEL, MAX_MODEL_BYTES)
    else:
        content = None
    if content is not None:
        return _of_sentencepiece(content, tokenizer)
    if values is None:
        raise ConversionError(
            f"{printable(directory.name)}: has neither {JSON} nor {MODEL} (transformers makes the "
            f"first: "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"
        )
    makers = {"BPE": _of_bpe, "Unigram": _of_unigram, "WordPiece": _of_wordpiece}
    if model_type not in makers:
        raise tokenizer.fail(
            f"its model is {printable(model_type) or 'missing'}; supported: {', '.join(makers)}"
        )
    tokens = makers[model_type](tokenizer, model)
    tokens.post = _post_steps(tokenizer)
    return tokens


def _of_bpe(tokenizer: JsonObject, model: JsonObject) -> Tokens:
    """Read BPE: byte-level BPE has merges; the merges of SentencePiece become scores."""
    vocabulary = _vocabulary(model)
    merges = _merges(model)
    if model.flag("byte_fallback", False):
        return _of_piece_merges(tokenizer, vocabulary, merges)
    normalizer = tokenizer.under("normalizer").word("type", "NFC")
    is_empty = normalizer == "Sequence" and not tokenizer.under("normalizer").objects("normalizers")
    if normalizer != "NFC" and not is_empty:
        raise tokenizer.fail(
            f"normalizer {printable(normalizer)} is not supported (get a GGUF file of this model)"
        )
    tokens = Tokens("gpt2", keys={"pre": find_pre_tokenizer(tokenizer.values, JSON)})
    for text, token_id in vocabulary.items():
        tokens.put(token_id, text, TokenType.NORMAL)
    tokens.keys["merges"] = [
        " ".join(symbol.replace(" ", "\u0120") for symbol in pair).encode() for pair in merges
    ]
    _add(tokens, tokenizer.objects("added_tokens"))
    return tokens


def _of_piece_merges(
    tokenizer: JsonObject, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> Tokens:
    tokens = Tokens("llama")
    rank: dict[str, int] = {}
    for first, second in merges:
        rank.setdefault(first + second, len(rank))
    for text, token_id in vocabulary.items():
        is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        if is_byte:
            token_type = TokenType.BYTE
        else:
            token_type = TokenType.NORMAL
        tokens.put(
            token_id, text, token_type, 0.0 if is_byte else -float(rank.get(text, len(rank)))
        )
    unknown = tokenizer.under("model").word("unk_token")
    _add(tokens, tokenizer.objects("added_tokens"))
    if unknown in vocabulary:
        tokens.types[vocabulary[unknown]] = TokenType.UNKNOWN
    tokens.keys["add_space_prefix"] = _begins_with_space(tokenizer)
    return tokens


def _begins_with_space(tokenizer: JsonObject) -> bool:
    """Return whether a text is read as if a space came before it."""
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
    """Read WordPiece: pieces at the start of a word get a space before them, the others lose their
    "##"."""
    tokens = Tokens("bert")
    for text, token_id in _vocabulary(model).items():
        is_marked = text.startswith("[") and text.endswith("]")
        if is_marked:
            piece = text
        elif text.startswith("##"):
            piece = text[2:]
        else:
            piece = SPACE + text
        tokens.put(token_id, piece, TokenType.NORMAL)
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
    for token_id, (text, score, token_type) in enumerate(model.pieces):
        tokens.put(token_id, text, token_type, score)
    _add(tokens, tokenizer.objects("added_tokens"), _ADDED_SCORE)
    tokens.post = _post_steps(tokenizer)
    return tokens


def _vocabulary(model: JsonObject) -> dict[str, int]:
    ids_by_text = model.get("vocab")
    if (
        not isinstance(ids_by_text, dict)
        or not ids_by_text
        or not all(map(_is_id, ids_by_text.values()))
    ):
        raise model.fail("model.vocab is no table of tokens and ids (get the file again)")
    if max(map(len, ids_by_text)) > MAX_TOKEN_CHARS:
        raise model.fail(
            f"model.vocab has a token of over {MAX_TOKEN_CHARS} characters (get the file again)"
        )
    model.check_texts("vocab", ids_by_text)
    return ids_by_text


def _merges(model: JsonObject) -> list[tuple[str, str]]:
    setting = model.get("merges")
    listed: list[Any] = setting if isinstance(setting, list) else [None]
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in listed]
    if not all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair)) for pair in pairs
    ):
        raise model.fail("model.merges is no list of pairs (get the file again)")
    model.check_texts("merges", (symbol for pair in pairs for symbol in pair))
    return [(pair[0], pair[1]) for pair in pairs]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_id(value: Any) -> TypeGuard[int]:
    """Return whether a value can be a token id."""
    return type(value) is int and 0 <= value < 1 << 31


def _is_token(value: Any) -> bool:
    """Return whether a value can be the text of a token."""
    return isinstance(value, str) and len(value) <= MAX_TOKEN_CHARS and is_utf8(value)


def _add_tokens(tokens: Tokens, settings: JsonObject) -> None:
    """Add the tokens of tokenizer_config.json."""
    added = settings.under("added_tokens_decoder")
    listed = []
    for key in added.values:
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise settings.fail(
                f"added_tokens_decoder has {printable(key)} in place of a token's id (get the "
                f"file again)"
            )
        listed.append(JsonObject({**added.under(key).values, "id": int(key)}, SETTINGS))
    _add(tokens, listed, _ADDED_SCORE)


def _add(tokens: Tokens, added: Sequence[JsonObject], score: float = 0.0) -> None:
    """Set the tokens that were added to a vocabulary: control tokens, and texts that are never
    split."""
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
    """Return the ids of special tokens, by the settings of the tokenizer, or else by those of the
    model."""
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
        (
            token_id
            for token_id, token_type in tokens.types.items()
            if token_type == TokenType.UNKNOWN
        ),
        None,
    )
    if unknown is not None:
        keys.setdefault("unknown_token_id", unknown)
    for name, alternative in (("bos", "cls"), ("eos", "seperator")):  # names of encoders
        if f"{name}_token_id" not in keys and f"{alternative}_token_id" in keys:
            keys[f"{name}_token_id"] = keys[f"{alternative}_token_id"]
    return keys


def _special_text(settings: JsonObject, name: str) -> str:
    """Return the text of a special token, which may be an object; "" if there is none."""
    if isinstance(settings.get(name), dict):
        return settings.under(name).word("content")
    return settings.word(name)


def _marks(tokens: Tokens, settings: JsonObject) -> dict[str, bool]:
    """Return whether texts get a first and a last special token, by the settings or the
    post-processor."""
    marks = {}
    has_first, has_last = _around(tokens.post)
    for name, is_added in (("bos", has_first), ("eos", has_last)):
        key = f"add_{name}_token"
        if settings.get(key) is not None or is_added is not None:
            marks[key] = settings.flag(key, bool(is_added))
    return marks


def _around(post: Sequence[JsonObject]) -> tuple[bool | None, bool | None]:
    """Return whether special tokens are put before and after a text; None if no step determines
    it."""
    for step in post:
        if step.get("type") == "RobertaProcessing":
            return True, True
        if step.get("type") == "TemplateProcessing" and (single := step.objects("single")):
            return "SpecialToken" in single[0].values, "SpecialToken" in single[-1].values
    return None, None


def _post_steps(tokenizer: JsonObject) -> Sequence[JsonObject]:
    """Return the steps that put special tokens around a text: those of a sequence, or the only
    one."""
    post = tokenizer.under("post_processor")
    if post.get("processors") is None:
        return [post]
    return post.objects("processors")


def _further_ends(
    directory: Path, config: JsonObject, keys: Mapping[str, Any], tokens: Tokens
) -> dict[str, int]:
    """Return further tokens that end a reply, by the generation settings, unless their texts are
    known."""
    name = "generation_config.json"
    generation = JsonObject(read_object(directory / name) or {}, name)
    if generation.get("eos_token_id") is not None:
        ends = generation.ids("eos_token_id")
    else:
        ends = config.ids("eos_token_id")
    known_texts = {text.encode() for text in END_TEXTS}
    further = [
        token_id
        for token_id in ends
        if tokens.texts.get(token_id, b"") not in known_texts
        and token_id != keys.get("eos_token_id")
    ]
    existing = [token_id for token_id in further if token_id in tokens.texts]
    return dict(zip(("eot_token_id", "eom_token_id"), existing, strict=False))


def _templates(directory: Path, settings: JsonObject) -> dict[str, Any]:
    """Return the chat templates; their own file has priority over the settings."""
    content = read_bytes(directory / "chat_template.jinja", MAX_TEMPLATE_BYTES)
    if content is not None:
        return {"tokenizer.chat_template": content.decode("utf-8", "replace")}
    holder = settings
    if settings.get("chat_template") is None:
        name = "chat_template.json"
        holder = JsonObject(read_object(directory / name) or {}, name)
    setting = holder.get("chat_template")
    if not isinstance(setting, list):
        text = holder.word("chat_template")
        holder.check_texts("chat_template", [text])
        if setting is not None:
            return {"tokenizer.chat_template": text}
        return {}
    templates = {
        template["name"]: template["template"]
        for template in setting
        if isinstance(template, dict)
        and isinstance(template.get("name"), str)
        and isinstance(template.get("template"), str)
    }
    holder.check_texts("chat_template", templates.values())
    keys = {"default": "tokenizer.chat_template", "tool_use": "tokenizer.chat_template.tool_use"}
    return {key: templates[name] for name, key in keys.items() if name in templates}
