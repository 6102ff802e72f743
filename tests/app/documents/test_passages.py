import math
from pathlib import Path

import pytest

from app.documents.passages import FileText, announcement, bm25, fit, fitting, for_message, words_of
from app.documents.read import Document, about_tokens
from app.documents.text_file import sources_of


def document(name: str, text: str) -> Document:
    return Document(name, Path("/", name), text, about_tokens(text))


def test_scores_are_those_computed_by_hand() -> None:
    texts = [["the", "cat", "sat"], ["the", "dog", "and", "the", "cat", "ran"], ["a", "dog"]]
    scores = bm25(["dog", "ran"], texts)
    # Mean length 11/3. "dog" occurs in 2 of 3 texts: ln(1 + 1.5/2.5) = 0.4700; "ran" in 1: ln(1 +
    # 2.5/1.5) = 0.9808. Text 2, 6 words: norm 1.2 * (0.25 + 0.75 * 18/11) = 1.7727; each word 2.2 /
    # 2.7727 = 0.79344. Text 3, 2 words: norm 1.2 * (0.25 + 0.75 * 6/11) = 0.79091; "dog" 2.2 /
    # 1.79091 = 1.22843.
    assert scores == pytest.approx(
        [0.0, (0.4700036 + 0.9808293) * 0.7934426, 0.4700036 * 1.2284264], rel=1e-6
    )


def test_a_repeated_word_scores_more_and_empty_text_scores_zero() -> None:
    once, twice = bm25(["fan"], [["fan", "x"], ["fan", "fan"]])
    assert twice > once > 0
    assert bm25(["fan"], []) == []
    assert bm25([], [[], []]) == [0.0, 0.0]
    assert not any(math.isnan(score) for score in bm25(["fan"], [[]]))


def test_words_ignore_case_and_cjk_characters_are_single_words() -> None:
    assert words_of("Die GRÖSSE, don't 東京!") == ["die", "grösse", "don", "t", "東", "京"]


def test_passages_that_fit_the_question_are_in_document_order() -> None:
    filler = "\n".join(f"line {n} about nothing at all, told at some length" for n in range(30))
    first = document("a.md", f"{filler}\n\nThe fan hums.\n{filler}")
    second = document("b.md", f"The fan is cleaned with a brush.\n{filler}")
    chosen = fitting([first, second], "How is the fan cleaned?", (3500, 0))
    assert [passage.document.name for passage in chosen] == ["a.md", "b.md"]
    assert "hums" in chosen[0].text
    assert "brush" in chosen[1].text
    for passage in chosen:
        lines = passage.document.text.split("\n")[passage.first - 1 : passage.last]
        assert "\n".join(lines) == passage.text


def test_all_passages_are_sent_if_none_has_a_question_word() -> None:
    text = "\n\n".join(f"{word} " * 180 for word in ("fan", "screw", "blade"))
    assert [
        passage.text.split()[0]
        for passage in fitting([document("a", text)], "a screw?", (10_000, 0))
    ] == ["screw"]
    assert len(fitting([document("a", text)], "sum it up", (10_000, 0))[0].text) == len(text)


def test_later_questions_add_only_passages_not_in_the_context() -> None:
    folder = [document(f"{word}.md", f"{word} turns. " * 12) for word in ("fan", "screw", "blade")]
    limits = 1500, 300
    [first] = fitting(folder, "how is the fan?", limits)
    assert first.document.name == "fan.md"
    context = f"{first.in_message} how is the fan?"
    assert fitting(folder, "the fan again?", limits, context) == []
    assert fitting(folder, "thank you", limits, context) == []
    [second] = fitting(folder, "a fan and a screw", limits, context)
    assert second.document.name == "screw.md"
    assert fitting(folder, "the fan?", limits, "how is the fan?") == [first], (
        "a passage dropped from the context is sent again"
    )
    assert len(fitting(folder, "fan screw blade", limits, context)) == 1, (
        "later questions have a smaller limit"
    )
    assert len(fitting(folder, "fan screw blade", limits)) == 3


def test_a_document_in_the_context_is_not_sent_again() -> None:
    document_in_context = document("a.md", "word " * 10)
    new_document = document("b.md", "text")
    context = f"{document_in_context.in_message} what is it?"
    assert [
        file.name for file in for_message([document_in_context, new_document], "?", 1024, context)
    ] == ["b.md"]


def test_neighbours_become_one_passage_and_a_long_line_several() -> None:
    numbers = document("a.md", "\n".join(f"number {n} " + "word " * 20 for n in range(40)))
    [passage] = fitting([numbers], "number", (100_000, 0))
    assert (passage.first, passage.last, passage.text) == (1, 40, numbers.text)
    pieces = fitting([document("b.md", "x" * 3000)], "x", (100_000, 0))
    assert [(piece.place, len(piece.text)) for piece in pieces] == [
        ("line 1", 1200),
        ("line 1", 1200),
        ("line 1", 600),
    ]


def test_sources_are_only_passages_that_jalopy_inserted() -> None:
    nasty = document("a, lines 1-2.md", "c.md, lines 5-6:\n```\nx\n```\n")
    pdf = Document("p.pdf", Path("/p.pdf"), "[page 1]\none\n[page 2]\ntwo\nmore")
    texts = [passage.in_message for passage in fitting([nasty, pdf], "x two", (10_000, 0))]
    question = "d.md, lines 7-8:\n```\nis it?"
    assert sources_of(" ".join([*texts, question])) == (
        "a, lines 1-2.md lines 1-5",
        "p.pdf pages 1-2",
    )
    assert sources_of(question) == sources_of(document("a", "b").in_message) == ()


def test_documents_that_fit_are_sent_whole_with_their_cost() -> None:
    small = document("a.md", "word " * 100)
    large = document("b.md", "word\n" * 10_000)
    assert fit([small], 1024)
    assert not fit([small, large], 1024)
    assert for_message([small], "?", 1024) == [FileText("a.md", small.in_message, small.text)]
    assert announcement([small], 1024, 10.0) == "a.md: about 110 tokens, about 11 s to read"
    [passages] = for_message([small, large], "word", 1024)
    assert passages.name == "passages of 2 files"
    assert 1000 < len(passages.in_message) <= 3 * 512
    assert "```" in passages.in_message
    assert "```" not in passages.text
    assert announcement([small, large], 1024, 0.0) == (
        "2 files are too long for this model (20,119 of 1,024 tokens). "
        "Each question will get the passages that match it"
    )
