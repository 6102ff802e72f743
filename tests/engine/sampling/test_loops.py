"""Endless loops are told apart from text that merely contains repetition."""

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
    """Split a text roughly as a vocabulary would: a word includes the blank before it, and each
    digit and punctuation mark is separate."""
    words: list[str] = []
    for char in text:
        joins = words and char.isalpha() and words[-1][-1:].isalpha() and len(words[-1]) < 8
        if joins or (words and words[-1] == " " and char != "\n"):
            words[-1] += char
        else:
            words.append(char)
    return words


def first_stop(words: list[str]) -> tuple[int, int] | None:
    """Return how many words of a reply pass before it is ended, and how many of them are removed.

    Return None if the reply is never ended.
    """
    ids = {word: index for index, word in enumerate(dict.fromkeys(words))}
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
def test_a_loop_is_ended_and_one_copy_remains(n: int) -> None:
    start = sentence(50, 2)
    unit = sentence(n)
    ended = first_stop(start + unit * (LONGEST // n + 4))
    assert ended is not None
    position, copied = ended
    assert position - len(start) <= COPIES * n + MORE_TOKENS + 1
    assert (start + unit * 2000)[: position - copied] == start + unit * (
        (position - copied - len(start)) // n
    ) + unit[: (position - copied - len(start)) % n]
    assert position - copied - len(start) <= n + 1, "no more than one copy"


def test_a_unit_that_repeats_within_itself_is_one_unit() -> None:
    unit = [*sentence(6), "and", *sentence(6), "but", "x"]
    ended = first_stop(unit * 100)
    assert ended is not None
    assert ended[0] - ended[1] == len(unit)


def test_a_repetition_that_ends_in_time_is_no_loop() -> None:
    assert first_stop((sentence(10) * 15 + sentence(20, 3)) * 2) is None


def test_rules_zeros_and_blanks_may_be_long() -> None:
    for unit in (["-"], ["0", ","], [" "], ["A"], ["|", " ", "-"]):
        assert first_stop(unit * ((MIN_POOR_TOKENS - 1) // len(unit))) is None
        assert first_stop(unit * MIN_POOR_TOKENS) is not None


@pytest.mark.parametrize("unit", [[" la"], ["la", ","], [" ", "h", "a"], ["No", "!", "\n"]])
def test_a_short_word_over_and_over_is_ended_soon(unit: list[str]) -> None:
    ended = first_stop(unit * 200)
    assert ended is not None
    assert ended[0] <= 150


def test_bytes_and_grids_of_two_letters_may_be_long() -> None:
    for unit in (["0", "xFF", ","], ["no", " |"], ["\\", "xff"], ["n/a", "\t"]):
        assert first_stop(unit * ((MIN_POOR_TOKENS - 1) // len(unit))) is None


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
def test_a_list_that_differs_only_in_numbers_is_ended(item: str) -> None:
    heading = words_of("Here is a list:\n\n")
    items = [words_of(item.format(n)) for n in range(1, 200)]
    ended = first_stop(heading + [word for item_words in items for word in item_words])
    assert ended is not None
    position, copied = ended
    n_remaining = position - copied - len(heading)
    assert len(items[0]) - 2 <= n_remaining <= len(items[0])
    assert position < len(heading) + (COPIES + 1) * (len(items[0]) + 2) + MORE_TOKENS


@pytest.mark.parametrize(
    "line",
    [
        # A list whose text varies now and then.
        lambda n: f"{n}. {'sunny' if n % 12 else 'rainy'} day",
        lambda n: f"{2 * n}. a sunny day",
        lambda n: f"{n},a sunny day,true",
        lambda n: f"({n}, 'a sunny day'),",
        lambda n: f"{n}. ____",
        lambda n: f"{n}. a sunny day\n   {n * 7919 % 1009}",
    ],
)
def test_other_numbered_lines_are_not_ended(line: Callable[[int], str]) -> None:
    assert first_stop(words_of("\n".join(line(n) for n in range(1, 100)))) is None


def test_an_adversarial_text_costs_no_more_per_token() -> None:
    # Each long run ends with another token, so every position suggests another period.
    random = Random(5)
    n = 60_000
    watch = LoopWatch()
    tokens = []
    while len(tokens) < n:
        tokens += [0] * random.randrange(1, 600) + [random.randrange(1, 3)] * random.randrange(1, 4)
    start_s = time.process_time()
    for token in tokens:
        watch.append(token)
    assert time.process_time() - start_s < 20 * n * 5e-6


def test_quotations_are_guessed_but_loops_are_not() -> None:
    prompt = list(range(100, 400))
    looping = Guessing(prompt, GuessCosts())
    quoting = Guessing(prompt, GuessCosts())
    for guesser in (looping, quoting):
        guesser.record_run([], [], 1.0)
    reply = [7, 8, 9, 10, 11] * 40
    n_proposed = 0
    for position, token in enumerate(reply):
        looping.take_logits(token)
        n_proposed += bool(position > 60 and looping.propose(3))
    assert n_proposed == 0
    for token in prompt[:200]:
        quoting.take_logits(token)
    assert quoting.propose(1) == [prompt[200]]
