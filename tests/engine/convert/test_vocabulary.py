"""Vocabularies of all types become GGUF keys, and pre-tokenizers are recognised by their
results."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import EngineError, Tokenizer
from engine.convert.bounded import JsonObject
from engine.convert.pre_tokenizer import SAMPLE, find_pre_tokenizer
from engine.convert.vocabulary import vocabulary_keys
from engine.tokenizer.pretokenize import PRE_TOKENIZERS, splitter
from tests.engine import tiny_gguf
from tests.engine.convert.hub_directory import (
    SPLIT,
    change_json,
    sentencepiece,
    write_json,
    write_vocabulary,
)

TEXTS = ("the rein on the sea", "  In\n\nan  inn, 1234 the!", "Straße é 日本", "")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def regex(expression: str, behaviour: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": behaviour,
        "invert": invert,
    }


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


@pytest.mark.parametrize(
    ("cutter", "ignores", "name"),
    [
        (SPLIT, False, "qwen2"),
        (BYTES, False, "gpt-2"),
        (sequence({"type": "Digits", "individual_digits": True}, BYTES), False, "smollm"),
        (sequence(regex(PRE_TOKENIZERS["llama-bpe"].expressions[0])), True, "llama-bpe"),
        # type: ignore[arg-type]
        (sequence(regex(PRE_TOKENIZERS["llama-bpe"].expressions[0], "Removed", True)), False,
         "smaug-bpe"),  # type: ignore[arg-type]
        (sequence(regex(r"\p{N}{1,3}"), regex("[一-龥぀-ゟ゠-ヿ]+"),
                  regex(PRE_TOKENIZERS["deepseek-v3"].expressions[2])), False, "deepseek-v3"),
        # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_pre_tokenizers_are_recognised_by_their_results(
    cutter: dict[str, Any], ignores: bool, name: str
) -> None:
    assert (
        find_pre_tokenizer({"pre_tokenizer": cutter, "model": {"ignore_merges": ignores}}, "t")
        == name
    )


def test_the_sample_distinguishes_all_pre_tokenizers() -> None:
    equal_names = [
        {"llama-bpe", "smaug-bpe", "glm4"},
        {"qwen2", "bailingmoe"},
        {"gpt-4o", "granite-embed-multi-97m"},
    ]
    names_by_words: dict[tuple[str, ...], set[str]] = {}
    for name, pre_tokenizer in PRE_TOKENIZERS.items():
        if not pre_tokenizer.is_raw:
            names_by_words.setdefault(tuple(splitter(name)(SAMPLE)), set()).add(name)
    assert [names for names in names_by_words.values() if len(names) > 1] == equal_names


@pytest.mark.parametrize(
    ("cutter", "line"),
    [
        (None, "has no pre_tokenizer"),
        (regex("[a-z]+"), "cuts words in a way that is not known"),
        (regex("[a-z]+", "Removed"), "splits in a way that is not supported"),
        (regex("[a-z]+", "Removed", True), "drops text"),
        (regex("(a"), "has an expression that cannot be read"),
        (regex("a" * 5000), "splits in a way that is not supported"),
        (regex(r"(?s)(.+)(.+)(.+)\3\2\1\p{Greek}"), "needs over"),
        (sequence(sequence(BYTES)), "has a sequence in a sequence"),
        ({"type": "Metaspace"}, "Metaspace is not supported"),
    ],
)
def test_other_pre_tokenizers_are_refused(
    cutter: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.convert.pre_tokenizer.TIMEOUT_S", 0.2)
    with pytest.raises(EngineError, match=f"^t: .*{line}"):
        find_pre_tokenizer({"pre_tokenizer": cutter}, "t")


def keys_of(directory: Path, n_tokens: int, **config: Any) -> dict[str, Any]:
    keys = vocabulary_keys(directory, JsonObject(config, "config.json"), n_tokens)
    Tokenizer.from_metadata(keys, "m")
    return keys


def spm_metadata() -> dict[str, Any]:
    entries = tiny_gguf.spm_vocabulary()
    return {
        **entries,
        "tokenizer.ggml.tokens": [text.encode() for text in entries["tokenizer.ggml.tokens"]],
    }


def test_merges_of_pieces_split_as_their_scores_do(tmp_path: Path) -> None:
    """The tokenizer.json was made from a SentencePiece file that is not there."""
    metadata = spm_metadata()
    write_vocabulary(tmp_path, metadata)
    texts = [text.decode() for text in metadata["tokenizer.ggml.tokens"]]
    merges = sorted(
        ((texts.index(a + b), a, b) for a in texts[259:] for b in texts[259:] if a + b in texts),
        key=lambda entry: entry[0],
    )
    tokenizer = {
        "normalizer": sequence({"type": "Prepend", "prepend": "▁"})
        | {"normalizers": [{"type": "Prepend"}]},
        "added_tokens": [{"id": i, "content": texts[i], "special": True} for i in range(3)],
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [f"{a} {b}" for _, a, b in merges],
        },
    }
    with_scores = Tokenizer.from_metadata(keys_of(tmp_path, len(texts)), "m")
    (tmp_path / "tokenizer.model").unlink()
    write_json(tmp_path / "tokenizer.json", tokenizer)
    keys = keys_of(tmp_path, len(texts) + 2)
    assert keys["tokenizer.ggml.tokens"][-1] == b"[PAD%d]" % (len(texts) + 1)
    assert keys["tokenizer.ggml.token_type"].tolist() == [
        *metadata["tokenizer.ggml.token_type"].tolist(),
        5,
        5,
    ]
    by_merges = Tokenizer.from_metadata(keys, "m")
    for text in TEXTS:
        assert by_merges.encode(text) == with_scores.encode(text)


def test_unigram_is_read_from_either_file(tmp_path: Path) -> None:
    pieces = [("<unk>", 0.0, 2), ("▁the", -1.5, 1), ("▁", -2.0, 1), ("t", -3.0, 1), ("he", -2.5, 1)]
    rules = np.zeros(4, np.uint32).tobytes() + b"\0"
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(pieces, model_type=1))
    from_first = keys_of(tmp_path, 5)
    model = {"type": "Unigram", "unk_id": 0, "vocab": [[text, score] for text, score, _ in pieces]}
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()}
    write_json(
        tmp_path / "tokenizer.json",
        {"model": model, "normalizer": normalizer, "pre_tokenizer": {"type": "Metaspace"}},
    )
    from_second = keys_of(tmp_path, 5)
    for key in ("tokens", "scores", "token_type", "add_space_prefix", "unknown_token_id", "model"):
        assert np.array_equal(
            from_first[f"tokenizer.ggml.{key}"], from_second[f"tokenizer.ggml.{key}"]
        ), key
    assert from_second["tokenizer.ggml.precompiled_charsmap"].tobytes() == rules


def test_wordpieces_start_a_word_or_continue_it(tmp_path: Path) -> None:
    vocab = {text: i for i, text in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "##re"])}
    marks = [
        {"SpecialToken": {"id": "[CLS]"}},
        {"Sequence": {"id": "A"}},
        {"SpecialToken": {"id": "[SEP]"}},
    ]
    tokenizer = {
        "model": {"type": "WordPiece", "vocab": vocab},
        "normalizer": {"type": "BertNormalizer", "lowercase": False},
        "added_tokens": [
            {"id": i, "content": text, "special": True} for text, i in vocab.items() if "[" in text
        ],
        "post_processor": {"type": "TemplateProcessing", "single": marks},
    }
    write_json(tmp_path / "tokenizer.json", tokenizer)
    write_json(
        tmp_path / "tokenizer_config.json",
        {"cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}},
    )
    keys = keys_of(tmp_path, 6)
    assert keys["tokenizer.ggml.tokens"] == [
        b"[PAD]",
        b"[UNK]",
        b"[CLS]",
        b"[SEP]",
        "▁the".encode(),
        b"re",
    ]
    expected = {"bos": 2, "eos": 3, "cls": 2, "seperator": 3}
    assert {name: keys[f"tokenizer.ggml.{name}_token_id"] for name in expected} == expected
    assert keys["tokenizer.ggml.add_bos_token"] is keys["tokenizer.ggml.add_eos_token"] is True
    assert (
        keys["tokenizer.ggml.normalizer.lowercase"]
        is keys["tokenizer.ggml.normalizer.strip_accents"]
        is False
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    entries = tiny_gguf.bpe_vocabulary()
    for key in ("tokens", "merges"):
        entries[f"tokenizer.ggml.{key}"] = [
            text.encode() for text in entries[f"tokenizer.ggml.{key}"]
        ]
    write_vocabulary(tmp_path, entries)
    return tmp_path


def test_templates_are_read_from_any_of_their_files(directory: Path) -> None:
    change_json(directory / "tokenizer_config.json", chat_template="settings")
    assert keys_of(directory, 267)["tokenizer.chat_template"] == "settings"
    named_templates = [
        {"name": "default", "template": "d"},
        {"name": "tool_use", "template": "t"},
        {"name": "odd"},
        3,
    ]
    change_json(directory / "tokenizer_config.json", chat_template=named_templates)
    keys = keys_of(directory, 267)
    assert (keys["tokenizer.chat_template"], keys["tokenizer.chat_template.tool_use"]) == ("d", "t")
    (directory / "chat_template.jinja").write_text("a file")
    assert keys_of(directory, 267)["tokenizer.chat_template"] == "a file"


def test_all_ends_of_the_generation_end_a_reply(directory: Path) -> None:
    write_json(directory / "generation_config.json", {"eos_token_id": [266, 264, 5, 7]})
    keys = keys_of(directory, 267)
    assert {keys[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "eot", "eom")} == {
        266,
        5,
        7,
    }
    # <|endoftext|> is recognised by its text
    assert Tokenizer.from_metadata(keys, "m").end_ids == {
        264,
        266,
        5,
        7,
    }


def bpe(vocab: dict[str, int], merges: list[Any] | None = None) -> dict[str, Any]:
    """Return changes of a tokenizer.json to merges of bytes."""
    return {"model": {"type": "BPE", "vocab": vocab, "merges": merges or []}}


def unigram(normalizer: Any = None, **model: Any) -> dict[str, Any]:
    """Return changes of a tokenizer.json to Unigram."""
    return {"model": {"type": "Unigram", "vocab": [["a", -1.0]], **model}, "normalizer": normalizer}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": {"type": "Odd"}}, "tokenizer.json: its model is Odd; supported: BPE"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}},
         "tokenizer.json: model.vocab is no table"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
         "tokenizer.json: model.vocab is no table"),
        ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [["a"]]}},
         "tokenizer.json: model.merges is no list"),
        ({"model": {"type": "BPE", "vocab": {"a": 1}}}, "tokenizer.json: model.merges is no list"),
        ({"normalizer": {"type": "Lowercase"}},
         "tokenizer.json: normalizer Lowercase is not supported"),
        ({"added_tokens": [{"id": "1"}]}, "tokenizer.json: added_tokens has no sound entry"),
        ({"model": {"type": "Unigram", "vocab": [["a"]]}},
         "tokenizer.json: model.vocab has no sound piece 0"),
        ({"added_tokens": [{"id": 900, "content": "x"}]},
         "config.json: the vocabulary has 901 tokens"),
        ({"added_tokens": [{"id": 10**9, "content": "x"}]},
         "config.json: the vocabulary has 1000000001 tokens"),
        ({"added_tokens": [{"id": -1, "content": "x"}]},
         "tokenizer.json: added_tokens has no sound entry of id -1"),
        ({"added_tokens": [{"id": 1, "content": "\ud800"}]},
         "tokenizer.json: added_tokens has no sound entry of id 1"),
        ({"added_tokens": 5}, "tokenizer.json: added_tokens is 5: must be a list of objects"),
        ({"model": 5}, "tokenizer.json: model is 5: must be an object"),
        ({"model": {"type": []}}, "tokenizer.json: model.type is a list: must be a text"),
        (bpe({"\ud800": 1}), "tokenizer.json: model.vocab has half of a surrogate pair"),
        (bpe({"a": 10**9}), "config.json: the vocabulary has 1000000001 tokens"),
        (bpe({"a": 1}, ["a \udfff"]), "tokenizer.json: model.merges has half of a surrogate pair"),
        (bpe({"a": 1}, [["\ud800", "b"]]),
         "tokenizer.json: model.merges has half of a surrogate pair"),
        ({"normalizer": 5}, "tokenizer.json: normalizer is 5: must be an object"),
        ({"normalizer": {"type": "Sequence", "normalizers": 5}},
         "tokenizer.json: normalizer.normalizers is 5: "),
        ({"pre_tokenizer": 5}, "tokenizer.json: has 5 in place of a pre_tokenizer"),
        ({"post_processor": 5}, "tokenizer.json: post_processor is 5: must be an object"),
        ({"post_processor": {"processors": [5]}},
         "tokenizer.json: post_processor.processors is a list: must be"),
        (unigram(normalizer=5), "tokenizer.json: normalizer is 5: must be an object"),
        (unigram(normalizer={"normalizers": 5}),
         "tokenizer.json: normalizer.normalizers is 5: must be a list of"),
        (unigram(normalizer={"type": "Precompiled"}),
         "tokenizer.json: a normalizer of type Precompiled has no"),
        (unigram(normalizer={"normalizers": [{"type": "Precompiled"}]}),
         "tokenizer.json: a normalizer of type Pre"),
        (unigram(normalizer={"type": "Precompiled", "precompiled_charsmap": 5}),
         "tokenizer.json: normalizer.precomp"),
        (unigram(normalizer={"type": "Precompiled", "precompiled_charsmap": "\ud800"}),
         "tokenizer.json: precompiled_"),
        (unigram(unk_id=10**9),
         "tokenizer.json: model.unk_id is 1000000000: must be a whole number from 0"),
        (unigram(vocab=[["a", 1e300]]), "tokenizer.json: score is 1e+300: must be a number"),
        (unigram(vocab=[["a", float("nan")]]), "tokenizer.json: score is nan: must be a number"),
        (unigram(vocab=[["\ud800", 1]]), "tokenizer.json: model.vocab has no sound piece 0"),
    ],
)  # fmt: skip
def test_impossible_vocabularies_are_refused(
    changes: dict[str, Any], line: str, directory: Path
) -> None:
    change_json(directory / "tokenizer.json", **changes)
    with pytest.raises(EngineError) as caught:
        keys_of(directory, 267)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("tokenizer_config.json", {"chat_template": "\ud800"},
         "chat_template has half of a surrogate pair"),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template is 5: must be a text"),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": "\udc00"}]},
         "chat_template has"),
        ("tokenizer_config.json", {"eos_token": 5}, "eos_token is 5: must be a text"),
        ("tokenizer_config.json", {"eos_token": {"content": 5}},
         "eos_token.content is 5: must be a text"),
        ("tokenizer_config.json", {"add_bos_token": "yes"},
         "add_bos_token is yes: must be true or false"),
        ("tokenizer_config.json", {"added_tokens_decoder": [5]},
         "added_tokens_decoder is a list: must be an object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}},
         "added_tokens_decoder has x in place of"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": 5}},
         "added_tokens_decoder.3 is 5: must be an object"),
        ("chat_template.json", {"chat_template": "\ud800"},
         "chat_template has half of a surrogate pair"),
        ("generation_config.json", {"eos_token_id": "2"},
         "eos_token_id is 2: must be a token's id"),
    ],
)  # fmt: skip
def test_other_files_are_named_with_the_key(
    name: str, changes: dict[str, Any], line: str, directory: Path
) -> None:
    path = directory / name
    if not path.exists():
        write_json(path, {})
    change_json(path, **changes)
    with pytest.raises(EngineError) as caught:
        keys_of(directory, 267)
    assert str(caught.value).startswith(f"{name}: {line}")
    assert str(caught.value).isprintable()


def test_an_embedding_of_too_many_rows_is_refused_at_once(directory: Path) -> None:
    with pytest.raises(
        EngineError, match=r"^config\.json: the embedding has 1000000000 rows: at most"
    ):
        keys_of(directory, 10**9)


PIECE = sentencepiece([("a", 0.0, 1)])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 20,
        b"\x0a\x05ab",
        sentencepiece([("a", 0.0, 9)]),
        sentencepiece([("a", 0.0, 1)], 3),
        sentencepiece([("a", math.nan, 1)]),
        PIECE + b"\x1a\x06\x10\x80\x80\x80\x80\x40",
        PIECE + b"\x0a\x02\x08\x05",
        PIECE + b"\x0a\x09\x11" + bytes(8),
        PIECE + b"\x08\x05",
    ],
)
def test_damaged_files_of_sentencepiece_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(EngineError, match=r"^tokenizer\.model: is no SentencePiece model"):
        keys_of(tmp_path, 5)
