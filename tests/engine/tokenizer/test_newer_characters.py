"""Characters newer than Unicode 15.1 are split as in llama.cpp: as if they were unassigned."""

from __future__ import annotations

import sys

import pytest
import regex

from engine.tokenizer.newer_characters import STAND_IN, has_newer, with_older
from engine.tokenizer.pretokenize import PRE_TOKENIZERS, splitter

N_ASSIGNED = 289_394
"""Number of code points with a class other than Cn in Unicode 15.1, including surrogates and
private use."""


def test_the_table_preserves_the_classes_of_unicode_15_1() -> None:
    """A newer ``regex`` with more characters fails here.

    The table must then be generated again, as its docstring describes.
    """
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert len(regex.findall(r"\P{Cn}", with_older(every))) == N_ASSIGNED
    newer = [char for char, older in zip(every, with_older(every), strict=True) if char != older]
    assert newer
    assert all(map(has_newer, newer))


@pytest.mark.parametrize(
    "text",
    ["plain", "naïve café 日本語 हिन्दी", "👍🏽 👨\u200d👩", "\U00031350\u0870", "\ufdd0\u0378"],
)
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert not has_newer(text)
    assert with_older(text) == text


@pytest.mark.parametrize(
    "text", ["\u088f", "a\U0001cc00", "\U00016ea0\U00016ebb", "\U0003347a\U00033479"]
)
def test_newer_characters_are_replaced_in_place(text: str) -> None:
    assert has_newer(text)
    assert len(with_older(text)) == len(text)
    assert STAND_IN in with_older(text)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("qwen2", "a\u088fb", ["a", "\u088fb"]),  # U+088F is a letter since Unicode 17
        ("qwen2", "7\U00010d40", ["7", "\U00010d40"]),  # a digit since Unicode 16
        ("qwen2", " \U00016ea0!", [" \U00016ea0!"]),  # a letter since Unicode 17
        ("smollm", "a\u0897b", ["a", "\u0897", "b"]),  # a mark since Unicode 16, not a letter
    ],
)
def test_newer_characters_are_split_as_if_unassigned(pre: str, text: str, words: list[str]) -> None:
    assert list(splitter(pre)(text)) == words


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_the_words_joined_are_the_text(pre: str) -> None:
    text = "a\u088f 12\U00010d40\U00010d41345 \U0001cc00!\u0897\n\U00033479x"
    assert "".join(splitter(pre)(text)) == text
