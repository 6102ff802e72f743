import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.text.clean_text import (
    MAX_MARKS,
    REPLACEMENT,
    ScreenCleaner,
    TextCleaner,
    clean_line,
    clean_text,
    editable_text,
    screen_text,
)

# Text with many filtered characters, because hypothesis alone rarely generates them.
SUSPICIOUS = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "\x00\x07\x1b\x7f\x85\x9b\r\n\t\u202e\u2066\u200b\u200d\ufeff\u0301\U0001f3f4"
            "\U000e0067\U000e007f\ufe0f\u845b\U000e0100\u2060\u0300\u2028"
            "\U000e0041\ud800\udc80a"
        ),
    ),
    max_size=60,
)
WALES = "🏴" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbwls") + "\U000e007f"
HIDDEN = {*"\u00ad\u180e\u2060\ufeff\u2028\u2029", *map(chr, range(0xFFF9, 0xFFFC))}


def split_at(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts})
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def longest_run_of_marks(text: str) -> int:
    marks = "".join("m" if unicodedata.category(c) in ("Mn", "Me") else " " for c in text)
    return max(map(len, marks.split()), default=0)


@given(SUSPICIOUS)
def test_sent_and_saved_text_has_no_control_characters(text: str) -> None:
    cleaned = clean_text(text)
    assert {c for c in cleaned if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}
    assert not {"\u2028", "\u2029"} & set(cleaned)
    cleaned.encode("utf-8")
    assert clean_text(cleaned) == cleaned
    assert longest_run_of_marks(cleaned) <= MAX_MARKS


@given(SUSPICIOUS)
def test_shown_text_is_harmless(text: str) -> None:
    screen = screen_text(text)
    assert {c for c in screen if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}
    assert not any(0x202A <= ord(c) <= 0x202E or 0x2060 <= ord(c) <= 0x206F for c in screen), (
        "no character reorders text"
    )
    assert not HIDDEN & set(screen)
    assert "\U000e0041" not in screen, "a tag letter outside a flag"
    screen.encode("utf-8")
    assert screen_text(screen) == screen == screen_text(clean_text(text))
    assert longest_run_of_marks(screen) <= MAX_MARKS


@given(SUSPICIOUS)
def test_an_editor_shows_a_harmless_character_for_each_one(text: str) -> None:
    cleaned = clean_text(text)
    screen = editable_text(cleaned)
    assert len(screen) == len(cleaned)
    assert not HIDDEN & set(screen)
    assert not any(0x202A <= ord(c) <= 0x202E or 0x2060 <= ord(c) <= 0x206F for c in screen)


@pytest.mark.parametrize(
    ("cleaner_type", "clean"), [(TextCleaner, clean_text), (ScreenCleaner, screen_text)]
)
@given(text=SUSPICIOUS, cuts=st.lists(st.integers(0, 60), max_size=8))
@example(text="a\r\nb", cuts=[2])
@example(text="e" + "\u0301" * 30, cuts=[3, 9])
@example(text="e" + "\u0301" * 8 + "\u2060" + "\u0301" * 8, cuts=[4, 9, 10])
@example(text=WALES * 2 + "\U000e0067", cuts=[1, 3, 8])
@example(text="a\r\U000e0067\r", cuts=[2])
def test_output_does_not_depend_on_how_input_is_split(
    cleaner_type, clean, text: str, cuts: list[int]
) -> None:
    cleaner = cleaner_type()
    joined = "".join(cleaner.push(piece) for piece in split_at(text, cuts)) + cleaner.flush()
    assert joined == clean(text)


@pytest.mark.parametrize(
    "text",
    [
        "ភាសា\u200bខ្មែរ",
        "Elektro\u00adtechnik, word\u2060joiner, \ufeffmiddle",
        "user \u2068אבג\u2069 wrote \u202bשלום\u202c",
        WALES + " and 葛\U000e0100飾区",
        "1\ufe0f\u20e3 🏳\ufe0f\u200d🌈 👩\u200d👩\u200d👧",
        "f\u2061(x) ᠮ\u180eᠠ",
        "\U000e0041hidden",
    ],
)
def test_invisible_characters_stay_in_sent_and_saved_text(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "screen"),
    [
        ("\u202eexe.fdp\u202c", f"{REPLACEMENT}exe.fdp{REPLACEMENT}"),
        ("a\u206ab", f"a{REPLACEMENT}b"),
        ("user \u2068אבג\u2069", "user אבג"),
        ("if access\u2066 // admin\u2069 \u2066 {", "if access // admin  {"),
        ("ភាសា\u200bខ្មែរ", "ភាសា\u200bខ្មែរ"),
        ("Elektro\u00adtechnik", "Elektrotechnik"),
        ("\ufeffa\u2060b", "ab"),
        (WALES, WALES),
        ("🏴" + "\U000e0067" * 9, "🏴" + "\U000e0067" * 6 + REPLACEMENT * 3),
        (WALES + "\U000e0067", WALES + REPLACEMENT),
        ("x\U000e0069\U000e0067", "x" + REPLACEMENT * 2),
        ("葛\U000e0100", "葛\U000e0100"),
        ("😊\U000e0100\U000e0101", "😊" + REPLACEMENT * 2),
        ("😊\ufe0e\ufe01", f"😊\ufe0e{REPLACEMENT}"),
        ("❤\ufe0f", "❤\ufe0f"),
    ],
)
def test_the_screen_shows_hiding_and_reordering_characters(text: str, screen: str) -> None:
    assert screen_text(text) == screen
    assert clean_line(text) == screen


def test_an_editor_shows_tags_and_hyphens_where_they_are() -> None:
    assert editable_text("a\u00adb\u2066c\U000e0041") == f"a-b\u200bc{REPLACEMENT}"
    assert editable_text(WALES) == WALES


@pytest.mark.parametrize(
    ("foreign", "screen"),
    [
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x1b[2J", "␛[2J"),
        ("\x9b2J", f"{REPLACEMENT}2J"),
        ("a\r\nb\nc", "a\nb\nc"),
        ("50%\r100%", "50%␍100%"),
        ("\x7f\x08\x00", "␡␈␀"),
        ("one\u2028two\u2029", "one\ntwo\n"),
        ("next\x85line", "next\nline"),
        ("naïve Ελλάδα 日本語\t👍🏽", "naïve Ελλάδα 日本語\t👍🏽"),
        ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("ab\udc80", f"ab{REPLACEMENT}"),
    ],
)
def test_foreign_text_is_shown_harmlessly(foreign: str, screen: str) -> None:
    assert clean_text(foreign) == screen
    assert screen_text(foreign) == screen


def test_a_lone_cr_at_the_end_of_a_text_is_shown() -> None:
    cleaner = TextCleaner()
    assert cleaner.push("a\r") == "a"
    assert cleaner.flush() == "␍"


def test_two_hundred_marks_keep_the_first_ones_only() -> None:
    assert clean_text("e" + "\u0301" * 200 + "f") == "e" + "\u0301" * MAX_MARKS + "f"


@given(SUSPICIOUS, st.integers(1, 40))
def test_a_clean_line_is_one_line_within_its_limit(text: str, limit: int) -> None:
    line = clean_line(text, limit)
    assert "\n" not in line
    assert "\t" not in line
    assert len(line) <= limit


def test_a_line_shows_newlines_escaped_and_says_where_it_was_cut() -> None:
    assert clean_line("a\nb\tc\n") == "a\\nb\\tc"
    assert clean_line("x" * 1_000_000, 5) == "xxxx…"
    assert clean_line("exact", 5) == "exact"
