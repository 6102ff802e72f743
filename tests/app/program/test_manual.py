import re

import pytest

from app.program import manual
from app.program.manual import lay_out, page, start_page, topics

MOST_EXAMPLE_COLUMNS = 76
"""Width of an example that a terminal of 80 columns shows in one line."""


@pytest.mark.parametrize("topic", topics())
def test_every_page_begins_with_its_title(topic: str) -> None:
    title, blank, *_ = page(topic).splitlines()
    assert title.lower().startswith(f"# {topic}: ")
    assert blank == ""


@pytest.mark.parametrize("topic", topics())
@pytest.mark.parametrize("columns", [40, 80, 100])
def test_no_line_is_wider_than_the_screen(topic: str, columns: int) -> None:
    rows = [row for row in page(topic).splitlines() if not row.startswith("  ")]
    for line in lay_out("\n".join(rows), columns):
        assert len(line.text) <= columns or " " not in line.text.strip()


@pytest.mark.parametrize("topic", topics())
def test_examples_fit_a_terminal_of_80_columns(topic: str) -> None:
    text = manual.read_text(manual._FOLDER / f"{topic}.txt", "page")
    examples = [line for line in text.splitlines() if line.startswith("  ")]
    assert [line for line in examples if len(line) > MOST_EXAMPLE_COLUMNS] == []


@pytest.mark.parametrize("topic", topics())
def test_a_page_keeps_all_its_words(topic: str) -> None:
    words = re.sub(r"^#+ ", "", page(topic), flags=re.MULTILINE).split()
    assert " ".join(line.text for line in lay_out(page(topic), 60)).split() == words


def test_paragraphs_are_wrapped_once_and_examples_stay() -> None:
    text = "# A: b\n\none two\nthree four\n\n## C\n\n  x = 1\n  y   long text of a row"
    assert [line.text for line in lay_out(text, 20)] == [
        "A: b",
        "",
        "  one two three four",
        "",
        "C",
        "    x = 1",
        "    y   long text of",
        "        a row",
    ]
    assert [line.text for line in lay_out(text, 20) if line.is_heading] == ["A: b", "C"]


def test_the_start_page_names_each_topic_once() -> None:
    rows = [line.split()[0] for line in start_page().splitlines() if line.startswith("  ")]
    assert sorted(row for row in rows if row in topics()) == topics()
