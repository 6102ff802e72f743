"""Words that a narrow screen cuts in their midst, found by comparing pictures of two widths."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.picture import FOLDER, Picture

NARROW = {"80x24": 80, "60x20": 60}
WIDE = ("200x60", "120x40", "100x30")
LAID_OVER = frozenset((
    "commands", "download", "downloading", "help", "palette", "question", "send-file", "smaller",
    "switch", "themes",
))  # fmt: skip
"""Scenes with a box over another screen, whose words it hides in part."""
_LAST_WORD = re.compile(r"([^\s│┃|]+) ?(?=[│┃|]|$)")


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[^\s│┃|╭╮╰╯]+", text))


def cut_words(narrow: str, columns: int, wide_words: set[str]) -> Iterator[str]:
    """Yield words that end at the edge of a box and begin a longer word of the wide picture."""
    for line in narrow.splitlines():
        for match in _LAST_WORD.finditer(line):
            word = match[1]
            is_at_edge = match.end() < len(line) or len(line) >= columns - 2
            if not is_at_edge or word in wide_words or not word[-1].isalnum():
                continue
            if any(wide_word.startswith(word) for wide_word in wide_words):
                yield f"{word}: {line.strip()}"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_no_screen_cuts_a_word(name: str) -> None:
    if name in LAID_OVER:
        return
    sections = Picture(name).sections()
    wide_words = set().union(*(words_of(sections.get(size, "")) for size in WIDE))
    for size, columns in NARROW.items():
        assert list(cut_words(sections.get(size, ""), columns, wide_words)) == []


def test_a_cut_word_is_found() -> None:
    narrow = "│ the processor is too │\n│ the processor is ho │\n│ the proc │"
    assert list(cut_words(narrow, 24, {"processor", "too", "the", "hot"})) == [
        "ho: │ the processor is ho │",
        "proc: │ the proc │",
    ]


def test_the_pictures_exist() -> None:
    assert {path.stem for path in Path(FOLDER).glob("*.txt")} >= LAID_OVER
