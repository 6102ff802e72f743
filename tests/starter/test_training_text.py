"""The training text: the same for the same seed, right in what it says, and free of the
evaluation's questions."""

import re

import pytest

from starter import evaluate
from starter.format import render
from starter.grammar import expand, fill, normalise, normalise_template, pattern
from starter.text import arithmetic, memory
from starter.text.calendar import DAYS
from starter.text.conversation import conversation, wordings
from starter.text.tables import Writer, countries

pytestmark = pytest.mark.slow


def conversations(seed: int, count: int, share_more: float = 0.5):
    rng = Writer(seed)
    rng.share_more = share_more
    rng.share_endless = 0.3
    return [conversation(rng) for _ in range(count)]


@pytest.fixture(scope="module")
def questions_of_the_test() -> list[tuple[str, str]]:
    questions = []
    for name, category in evaluate.read_categories().items():
        questions += [(name, case[-2]) for case in category.get("cases", ())]
        for wording in category.get("wordings", ()):
            questions.append(
                (name, fill(wording.split(": ")[-1], {"x": "17", "y": "5", "country": "France"}))
            )
    return questions


@pytest.fixture(scope="module")
def turns() -> list[tuple[str, str]]:
    """Questions and answers of many conversations."""
    return [turn for _, turns in conversations(3, 2500) for turn in turns]


def test_the_same_seed_makes_the_same_text():
    assert conversations(7, 50) == conversations(7, 50)
    assert conversations(7, 50) != conversations(8, 50)


def n_words_of_its_own(wording: str) -> int:
    """Count what is neither a slot nor a later alternative."""
    first_alternatives = re.sub(r"\[([^|\]]*)[^\]]*\]", r"\1", wording)
    return len(normalise(re.sub(r"\{[^}]*\}", " ", first_alternatives)).split())


def in_all_sentences(wording: str) -> list[str]:
    """Runs of characters that stand in every sentence of a wording."""
    n = 1
    while n:
        wording, n = re.subn(r"\[[^\[\]]*\]|\{[^{}]*\}", " ", wording)
    return normalise_template(wording).split()


def test_no_question_of_the_test_is_in_the_training_text(questions_of_the_test):
    # What is hardly more than a slot ("What is {country}?") matches anything: two words say
    # something where the question has a single word for each slot, one word nothing.
    counted = [
        (wording, n) for wording in set(wordings()) if (n := n_words_of_its_own(wording)) > 1
    ]
    questions = {
        normalise(question)
        for name, question in questions_of_the_test
        if name not in ("unknown", "loops")
    }
    overlaps = []
    n_compiled = 0
    for wording, count in counted:
        phrases = in_all_sentences(wording)
        longest = max(phrases, key=len, default="")
        if like := [
            question_text
            for question_text in questions
            if longest in question_text and all(phrase in question_text for phrase in phrases)
        ]:
            expression = pattern(wording, slot_words=4 if count > 2 else 1)
            n_compiled = n_compiled + 1
            overlaps += [(question, wording) for question in like if expression.fullmatch(question)]
    assert (overlaps, len(counted) > 500, n_compiled > 100) == ([], True, True)


def test_no_question_of_the_test_occurs_in_the_training_text(questions_of_the_test, turns):
    seen = {normalise(question) for question, _ in turns}
    assert not seen & {normalise(question) for _, question in questions_of_the_test} - {""}


def test_patterns_match_the_sentences_of_their_wordings():
    rng = Writer(1)
    values = {
        "country": "the Netherlands",
        "capital": "New Delhi",
        "other": "Chad",
        "continent": "Asia",
        "x": "12",
        "y": "7",
    }
    # One of those that differ in words alone: letters and spaces count as one.
    for wording in {
        re.sub("[a-z ]+", "a", wording.lower()): wording for wording in wordings()
    }.values():
        sentence = expand(wording, rng, lambda name: values.get(name, "word"))
        assert pattern(wording).fullmatch(normalise(sentence)), (wording, sentence)


@pytest.mark.smoke
def test_sums_in_the_text_are_right():
    rng = Writer(2)
    checked = 0
    for _ in range(2000):
        for _, answer in arithmetic.turns(rng):
            match = re.fullmatch(
                r"(\d+) ([-+x/]) (\d+) = (?:(\d+) ([-+]) (\d+) = )?(-?\d+)\.", answer
            )
            if match is None:
                continue
            x = int(match[1])
            y = int(match[3])
            result = int(match[7])
            assert (
                result == {"+": x + y, "-": x - y, "x": x * y, "/": x // y if y else None}[match[2]]
            )
            if match[4]:
                assert int(match[4]) + int(match[6]) * (-1 if match[5] == "-" else 1) == result
            checked += 1
    assert checked > 1000


def test_capitals_in_the_text_are_those_of_the_table(turns):
    by_name = countries()
    checked = 0
    for _, answer in turns:
        match = re.match(r"The capital of (.+?) is (.+?)\.(?: |$)", answer)
        if match and match[1] in by_name:
            assert answer.startswith(f"The capital of {match[1]} is {by_name[match[1]].capital}")
            checked += 1
    assert checked > 300


def test_names_that_were_told_are_remembered_as_told():
    rng = Writer(4)
    person = memory.Person()
    for _ in range(200):
        memory.tell(person, rng)
        for question, answer in memory.ask(person, rng):
            if (
                "my name" in question.lower()
                and "remember" not in question
                and "name" in person.told
                and "'s" not in question
            ):
                assert (
                    person.told["name"] in answer or "name of" in question or "not told" in answer
                )


def test_pets_are_counted():
    rng = Writer(5)
    person = memory.Person(pets=[(2, "cat"), (1, "dog")])
    answers = [memory.ask(person, rng)[0][1] for _ in range(100)]
    assert "You have two cats and a dog: 2 + 1 = 3. That is 3 pets." in answers


def test_tomorrow_follows_today(turns):
    n_checked = 0
    for question, answer in turns:
        today = re.search(
            rf"(?:today is|it is) ({'|'.join(DAYS)})\b.*tomorrow", question, re.IGNORECASE
        )
        if today and answer.startswith("Tomorrow is"):
            n_checked += 1
            assert answer == f"Tomorrow is {DAYS[(DAYS.index(today[1].capitalize()) + 1) % 7]}."
    assert n_checked


def test_a_conversation_is_written_as_the_template_does():
    assert render("Be kind.", [("Hi", "Hello!")]) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    )


def test_more_wordings_change_no_random_number_when_they_are_off():
    plain = Writer(3)
    off = Writer(3)
    on = Writer(3)
    on.share_more = 1.0
    assert [plain.choice("ab") for _ in range(20)] == [off.wording("ab", "cd") for _ in range(20)]
    assert {on.wording("ab", "cd") for _ in range(50)} == {"c", "d"}
    assert on.wording("a", ()) == "a"
