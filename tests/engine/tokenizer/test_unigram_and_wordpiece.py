"""Unigram and WordPiece vocabularies: ids worked out by hand, ends of texts, and wrong tables."""

from __future__ import annotations

from array import array
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import TokenizerError
from engine.tokenizer import Tokenizer

PIECES = {
    "▁": -4.0,
    "▁a": -3.0,
    "b": -3.5,
    "ab": -5.0,
    "▁ab": -5.5,
    "c": -3.0,
    "bc": -5.5,
    "▁x": -1.0,
}


def unigram(pieces: dict[str, float] | None = None, **keys: Any) -> Tokenizer:
    """Return a vocabulary of <pad>, </s>, <unk>, and pieces with their scores."""
    scores = PIECES if pieces is None else pieces
    tokens = ["<pad>", "</s>", "<unk>", *scores]
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [token.encode() for token in tokens],
        "tokenizer.ggml.scores": np.array([0.0, 0.0, 0.0, *scores.values()], np.float32),
        "tokenizer.ggml.token_type": np.array([3, 3, 2, *[1] * len(scores)], np.int32),
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.add_space_prefix": True,
    }
    return Tokenizer.from_metadata(
        metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}, "t.gguf"
    )


def wordpiece(**keys: Any) -> Tokenizer:
    words = ["▁the", "▁cat", "s", "▁resume", "▁,", "▁中", "▁文", "▁c", "at", "▁A"]
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [token.encode() for token in ["[UNK]", "[CLS]", "[SEP]", *words]],
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[1] * len(words)], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return Tokenizer.from_metadata(metadata | keys, "b.gguf")


def texts(tokenizer: Tokenizer, text: str, bos: bool | None = False) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, bos=bos)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab", ["▁ab"]),  # -5.5, better than ▁a b with -6.5
        ("abc", ["▁a", "bc"]),  # -8.5: as good as ▁ab c, whose last cut is later
        ("a  ab", ["▁a", "▁ab"]),
        ("zz", ["▁", "<unk>"]),  # adjacent unknown characters are one token
        ("azb", ["▁a", "<unk>", "b"]),
        ("", []),
        ("   ", []),
    ],
)
def test_the_likeliest_split_of_a_text_is_used(text: str, expected: list[str]) -> None:
    assert texts(unigram(), text) == expected


def test_a_text_ends_with_its_end_token_and_is_restored() -> None:
    tokenizer = unigram()
    assert texts(tokenizer, "ab c", None) == ["▁ab", "▁", "c", "</s>"]
    assert tokenizer.decode(tokenizer.encode("ab c")) == "ab c"


def test_every_space_counts_unless_the_file_merges_them() -> None:
    assert texts(unigram(remove_extra_whitespaces=False, add_space_prefix=None), "a  x") == [
        "<unk>",
        "▁",
        "▁x",
    ]
    assert texts(unigram(remove_extra_whitespaces=False), "a  x") == ["▁a", "▁", "▁x"]


def rules(**of: bytes) -> np.ndarray:
    """Return a table that rewrites single bytes."""
    entries = array("I", [256 << 10, *[0] * 767])
    put_in = b""
    for char, text in of.items():
        node = 256 ^ ord(char)
        entries[node] = 768 << 10 | 1 << 8 | ord(char)
        entries[node ^ 768] = len(put_in)
        put_in += text + b"\0"
    table = entries.tobytes()
    return np.frombuffer(len(table).to_bytes(4, "little") + table + put_in, np.uint8)


def test_characters_are_rewritten_by_the_files_table() -> None:
    assert texts(unigram(precompiled_charsmap=rules(X=b"x", Y=b"", Z=b" a")), "XYZb") == [
        "▁x",
        "▁ab",
    ]


def test_a_table_that_points_beyond_its_texts_is_refused() -> None:
    damaged = rules(X=b"x")[:-1]
    with pytest.raises(
        TokenizerError, match=r"^t\.gguf: tokenizer\.ggml\.precompiled_charsmap is damaged"
    ):
        unigram(precompiled_charsmap=damaged).encode("X")
    with pytest.raises(TokenizerError, match="precompiled_charsmap is not an array of bytes"):
        unigram(precompiled_charsmap=7)


@settings(deadline=None, max_examples=60)
@given(raw=st.binary(min_size=1, max_size=200), text=st.text(max_size=20))
def test_any_table_is_used_or_refused(raw: bytes, text: str) -> None:
    try:
        ids = unigram(precompiled_charsmap=np.frombuffer(raw, np.uint8)).encode(text)
    except TokenizerError:
        return
    assert all(0 <= token_id < 3 + len(PIECES) for token_id in ids)


def test_long_texts_and_long_tokens_take_no_quadratic_time() -> None:
    pieces = {"▁": -1.0, **{"a" * n: -float(n) for n in (1, 2, 100, 5000)}}
    began = process_time()
    ids = unigram(pieces).encode("a" * 20_000, bos=False)
    assert len(ids) > 200
    assert process_time() - began < 15


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cats", ["▁the", "▁cat", "s"]),
        ("RÉSUMÉ,the", ["▁resume", "▁,", "▁the"]),
        ("中文", ["▁中", "▁文"]),
        ("catx the", ["[UNK]", "▁the"]),  # a word that tokens do not cover is one unknown token
        ("the\u200b\ncat\0s", ["▁the", "▁cat", "s"]),
        ("cat\x1cs\u3000the", ["▁cat", "s", "▁the"]),  # a separator of tables is no white space
        ("", []),
    ],
)
def test_words_are_split_into_the_longest_tokens_from_the_start(
    text: str, expected: list[str]
) -> None:
    assert texts(wordpiece(), text) == expected


def test_a_text_is_enclosed_in_its_special_tokens() -> None:
    assert texts(wordpiece(), "the", None) == ["[CLS]", "▁the", "[SEP]"]


def test_capitals_are_preserved_if_the_file_says_so() -> None:
    tokenizer = wordpiece(**{"tokenizer.ggml.normalizer.lowercase": False})
    assert texts(tokenizer, "A a") == ["▁A", "[UNK]"]
