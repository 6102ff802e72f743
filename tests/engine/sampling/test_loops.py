"""A reply that repeats itself without end is told from text that only has repetition in it."""

import time
from collections.abc import Callable
from random import Random

import pytest

from engine.sampling.guessing import GuessCosts, Guessing
from engine.sampling.loops import (
    COPIES,
    LONGEST,
    MIN_POOR_TOKENS,
    MORE_TOKENS,
    LoopGuard,
    LoopWatch,
)
from tests.engine.sampling import sound_texts


def words_of(text: str) -> list[str]:
    """Cut a text about as vocabularies do: words with the blank before them, figures and marks
    alone."""
    found: list[str] = []
    for char in text:
        joins = found and char.isalpha() and found[-1][-1:].isalpha() and len(found[-1]) < 8
        if joins or (found and found[-1] == " " and char != "\n"):
            found[-1] += char
        else:
            found.append(char)
    return found


def first_stop(words: list[str]) -> tuple[int, int] | None:
    """Return after how many words a reply of them is ended, and how many of the last are left out;
    None: never."""
    ids = {word: at for at, word in enumerate(dict.fromkeys(words))}
    texts = [word.encode() for word in ids]
    guard = LoopGuard(texts.__getitem__)
    for n, word in enumerate(words, 1):
        if copied := guard.append(ids[word]):
            return n, copied
    return None


def sentence(n: int, seed: int = 1) -> list[str]:
    random = Random(seed)
    return ["".join(random.choice("abcdefghij") for _ in range(4)) for _ in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 30, 200, 500])
def test_a_loop_is_ended_and_one_copy_of_it_stays(n: int) -> None:
    before = sentence(50, 2)
    unit = sentence(n)
    ended = first_stop(before + unit * (LONGEST // n + 4))
    assert ended is not None
    at, copied = ended
    assert at - len(before) <= COPIES * n + MORE_TOKENS + 1
    assert (before + unit * 2000)[: at - copied] == before + unit * (
        (at - copied - len(before)) // n
    ) + unit[: (at - copied - len(before)) % n]
    assert at - copied - len(before) <= n + 1, "no more than one copy"


def test_a_unit_that_repeats_within_itself_is_one_unit() -> None:
    unit = [*sentence(6), "and", *sentence(6), "but", "x"]
    ended = first_stop(unit * 100)
    assert ended is not None
    assert ended[0] - ended[1] == len(unit)


def test_a_loop_that_ends_in_time_is_none() -> None:
    assert first_stop((sentence(10) * 15 + sentence(20, 3)) * 2) is None


def test_rules_zeros_and_blanks_may_be_long() -> None:
    for unit in (["-"], ["0", ","], [" "], ["A"], ["|", " ", "-"]):
        assert first_stop(unit * ((MIN_POOR_TOKENS - 1) // len(unit))) is None
        assert first_stop(unit * MIN_POOR_TOKENS) is not None


@pytest.mark.parametrize(
    "emoji", ["\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f31f"]
)
def test_emoji_are_words_even_where_each_byte_is_a_token(emoji: str) -> None:
    guard = LoopGuard(lambda byte: bytes([byte]))
    stops = [n for n, byte in enumerate((emoji * 300).encode()) if guard.append(byte)]
    assert stops
    assert stops[0] < 250


def test_tables_and_drawings_are_never_ended() -> None:
    for text in sound_texts.tables():
        assert first_stop(words_of(text)) is None, text[:60]


@pytest.mark.slow
def test_a_megabyte_of_code_is_never_ended() -> None:
    n_bytes = 0
    for text in sound_texts.code():
        assert first_stop(words_of(text)) is None, text[:60]
        n_bytes += len(text)
    assert n_bytes >= sound_texts.N_CODE_BYTES


@pytest.mark.parametrize(
    "item", ["{}. a sunny day\n", "{}) a sunny day at the beach, with ice\n\n", "  {}. sunny\n"]
)
def test_a_list_that_only_counts_is_ended(item: str) -> None:
    before = words_of("Here is a list:\n\n")
    items = [words_of(item.format(n)) for n in range(1, 200)]
    ended = first_stop(before + [word for one in items for word in one])
    assert ended is not None
    at, copied = ended
    kept = at - copied - len(before)
    assert len(items[0]) - 2 <= kept <= len(items[0])
    assert at < len(before) + (COPIES + 1) * (len(items[0]) + 2) + MORE_TOKENS


@pytest.mark.parametrize(
    "line",
    [
        # a list that says another thing in time
        lambda n: f"{n}. {'sunny' if n % 12 else 'rainy'} day",
        lambda n: f"{2 * n}. a sunny day",
        lambda n: f"{n},a sunny day,true",
        lambda n: f"({n}, 'a sunny day'),",
        lambda n: f"{n}. ____",
        lambda n: f"{n}. a sunny day\n   {n * 7919 % 1009}",
    ],
)
def test_other_lines_that_count_are_let_go_on(line: Callable[[int], str]) -> None:
    assert first_stop(words_of("\n".join(line(n) for n in range(1, 100)))) is None


def test_a_text_made_to_be_dear_costs_as_little_for_each_token() -> None:
    # Long runs, each broken by another token, so that every place asks for another period.
    random = Random(5)
    n = 60_000
    watch = LoopWatch()
    tokens = []
    while len(tokens) < n:
        tokens += [0] * random.randrange(1, 600) + [random.randrange(1, 3)] * random.randrange(1, 4)
    began = time.process_time()
    for token in tokens:
        watch.append(token)
    assert time.process_time() - began < 20 * n * 5e-6


def test_nothing_is_guessed_in_a_loop_and_a_quotation_is() -> None:
    asked = list(range(100, 400))
    looping = Guessing(asked, GuessCosts())
    quoting = Guessing(asked, GuessCosts())
    for one in (looping, quoting):
        one.record_run([], [], 1.0)
    said = [7, 8, 9, 10, 11] * 40
    n_proposed = 0
    for at, token in enumerate(said):
        looping.take_logits(token)
        n_proposed += bool(at > 60 and looping.propose(3))
    assert n_proposed == 0
    for token in asked[:200]:
        quoting.take_logits(token)
    assert quoting.propose(1) == [asked[200]]
