import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.text.clean_text import MAX_MARKS, REPLACEMENT, TextCleaner, clean_line, clean_text

# Text in which what the filter looks for is common: hypothesis finds it rarely by itself.
SUSPICIOUS = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "\x00\x07\x1b\x7f\x85\x9b\r\n\t\u202e\u2066\u200b\u200d\ufeff\u0301\u0300\u2028\U000e0041\ud800\udc80a"
        ),
    ),
    max_size=60,
)
HIDDEN = {*"\u00ad\u180e\u200b\u2060\ufeff\u2028\u2029", *map(chr, range(0xFFF9, 0xFFFC))}


def split_at(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts})
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@given(SUSPICIOUS)
def test_what_comes_out_is_harmless(text: str) -> None:
    cleaned = clean_text(text)
    assert {c for c in cleaned if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}
    assert not any(0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069 for c in cleaned), "nothing is reordered"
    assert not any(0xE0000 <= ord(c) <= 0xE0FFF for c in cleaned), "nor hidden"
    assert not HIDDEN & set(cleaned)
    cleaned.encode("utf-8")
    assert clean_text(cleaned) == cleaned
    marks = "".join("m" if unicodedata.category(c) in ("Mn", "Me") else " " for c in cleaned)
    assert max(map(len, marks.split()), default=0) <= MAX_MARKS


@given(SUSPICIOUS, st.lists(st.integers(0, 60), max_size=8))
@example("a\r\nb", [2])
@example("e" + "\u0301" * 30, [3, 9])
def test_any_split_of_the_input_gives_the_same_output(text: str, cuts: list[int]) -> None:
    cleaner = TextCleaner()
    joined = "".join(cleaner.push(piece) for piece in split_at(text, cuts)) + cleaner.flush()
    assert joined == clean_text(text)


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x1b[2J", "␛[2J"),
        ("\x9b2J", f"{REPLACEMENT}2J"),
        ("a\r\nb\nc", "a\nb\nc"),
        ("50%\r100%", "50%␍100%"),
        ("\x7f\x08\x00", "␡␈␀"),
        ("one\u2028two\u2029", "one\ntwo\n"),
        ("\u202eexe.fdp", f"{REPLACEMENT}exe.fdp"),
        ("naïve Ελλάδα 日本語\t👍🏽", "naïve Ελλάδα 日本語\t👍🏽"),
        ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("ab\udc80", f"ab{REPLACEMENT}"),
    ],
)
def test_foreign_text_is_shown_as(foreign: str, shown: str) -> None:
    assert clean_text(foreign) == shown


def test_a_lone_cr_at_the_end_is_shown_when_the_text_ends() -> None:
    cleaner = TextCleaner()
    assert cleaner.push("a\r") == "a"
    assert cleaner.flush() == "␍"


def test_two_hundred_marks_keep_the_first_ones_only() -> None:
    assert clean_text("e" + "\u0301" * 200 + "f") == "e" + "\u0301" * MAX_MARKS + "f"


@given(SUSPICIOUS, st.integers(1, 40))
def test_a_line_is_one_line_within_its_limit(text: str, limit: int) -> None:
    line = clean_line(text, limit)
    assert "\n" not in line
    assert "\t" not in line
    assert len(line) <= limit


def test_a_line_shows_newlines_escaped_and_says_where_it_was_cut() -> None:
    assert clean_line("a\nb\tc\n") == "a\\nb\\tc"
    assert clean_line("x" * 1_000_000, 5) == "xxxx…"
    assert clean_line("exact", 5) == "exact"
