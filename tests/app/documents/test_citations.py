"""Citations: the places in documents that a reply refers to."""

from __future__ import annotations

import time

from app.documents.citations import MOST_CITATIONS, find_citations
from app.documents.text_file import attached

REPORT = attached(
    "report.pdf",
    "[page 1]\nThe annual report of the harbour.\n[page 2]\nThe steamer carried 214 "
    "passengers to Bergen in March.\n"
    "[page 3]\nCoal was bought from Newcastle at nineteen shillings.",
)
NOTES = attached("notes.md", "\n".join(f"note {n} says nothing of worth" for n in range(1, 30)))


def citation_texts(reply: str, *messages: str) -> list[str]:
    return [citation.shown for citation in find_citations(reply, messages)]


def test_a_cited_page_or_line_is_found_in_the_document() -> None:
    page = find_citations("The price is given (report.pdf, p. 3).", [f"{REPORT} what?"])[0]
    assert (page.shown, page.lines[1]) == (
        "report.pdf page 3",
        "Coal was bought from Newcastle at nineteen shillings.",
    )
    assert page.before[-1].startswith("The steamer")
    assert (page.after, page.first) == ((), 0)
    lines = find_citations("See lines 10-12 of it.", [f"{NOTES} what?"])[0]
    assert (lines.shown, lines.first, len(lines.lines), len(lines.before)) == (
        "notes.md lines 10-12",
        10,
        3,
        9,
    )
    assert lines.lines[0] == "note 10 says nothing of worth"


def test_citations_outside_the_documents_are_ignored() -> None:
    documents = f"{NOTES} {REPORT} what?"
    assert (
        citation_texts(
            "It is on page 9, and on line 3, and (other.pdf, page 1).", f"{REPORT} what?"
        )
        == []
    )
    assert (
        citation_texts("It is on page 3.", documents) == []
    )  # no document is named, and there are two
    assert citation_texts("notes.md says so on page 3, report.pdf on page 2.", documents) == [
        "report.pdf page 2"
    ]
    assert citation_texts(
        "See data.md, line 3", f"{attached('a.md', 'x')} {attached('data.md', NOTES)} ?"
    ) == ["data.md line 3"]
    assert (
        citation_texts("See page 3.", "page 3 is not in a file") == citation_texts("page 3") == []
    )


def test_a_sentence_is_found_by_its_words() -> None:
    reply = "You are welcome to ask for more. In March the steamer carried 214 passengers."
    assert citation_texts(reply, f"{REPORT} how many?", "and again?") == ["report.pdf page 2"]
    log = attached(
        "log.txt", "Built in 1871.\nThe captain of the Corvina was Mrs. Eleanor Whitfield.\nFog."
    )
    assert citation_texts(
        "The captain of the Corvina was Mrs. Eleanor Whitfield.", f"{log} who?"
    ) == ["log.txt line 2"]
    assert citation_texts("1871.", f"{log} When was it built?") == ["log.txt line 1"]
    assert citation_texts("Yes.", f"{log} Is it so?") == []
    book = attached("book.txt", "\n\n".join(f"{n} is here. " + f"word{n} " * 90 for n in range(9)))
    assert citation_texts(
        "It says word4 word5 nowhere. 4 times: word4 is here, here.", f"{book} ?"
    ) == ["book.txt line 9"]
    assert citation_texts("That is a fine question indeed, my friend.", f"{book} ?") == []


def test_of_a_page_only_the_lines_of_the_sentence_are_marked() -> None:
    page = "\n".join(f"Row {n} tells of other things." for n in range(20))
    fact = "The steamer Corvina carried 214\npassengers to Bergen in March."
    report = attached("report.pdf", f"[page 1]\n{page}\n{fact}\n{page}")
    for reply in (
        "The Corvina carried 214 passengers to Bergen.",
        "The Corvina carried 214 passengers to Bergen (report.pdf, p. 1).",
    ):
        citation = find_citations(reply, [f"{report} how many?"])[0]
        assert citation.shown == "report.pdf page 1"
        assert citation.lines == tuple(fact.split("\n"))
        assert citation.before[-1] == "Row 19 tells of other things."
        assert citation.after[0] == "Row 0 tells of other things."


def test_facts_of_a_sentence_may_be_from_several_documents() -> None:
    handbook = attached(
        "handbook.md", "The winch lifts 2,400 kilograms.\n\nThe dog is called Barnacle.\n\nEnd."
    )
    reply = "The steamer carried 214 passengers, the winch lifts 2,400 kilograms and so on."
    assert set(citation_texts(reply, f"{handbook} {REPORT} what?")) == {
        "report.pdf page 2",
        "handbook.md line 1",
    }


def test_named_citations_come_before_passages() -> None:
    attachments = (
        attached("r.pdf, pages 4-5", "tail\n[page 5]\nfive")
        + " "
        + attached("n.md, lines 7-8", "seven\neight")
    )
    assert citation_texts("As page 5 of r.pdf says", f"{attachments} what?") == [
        "r.pdf page 5",
        "r.pdf pages 4-5",
        "n.md lines 7-8",
    ]
    assert citation_texts("As line 8 of n.md says", f"{attachments} what?")[0] == "n.md line 8"
    assert (
        citation_texts("Yes.", f"{attachments} what?", "and?") == []
    )  # belongs to an earlier question


def test_hostile_documents_and_replies_cost_little() -> None:
    text = "[page 99999999999]\n" + "[page 1]\n" * 2_000 + "x " * 50_000
    messages = [f"{attached('a.pdf', text)} {attached('b.md, lines 1-99999999999999', text)} ?"]
    reply = "a.pdf page 1-9999999, b.md line 1 " * 3000 + "pages " * 20_000
    began_s = time.process_time()
    citations = find_citations(reply, messages)
    assert time.process_time() - began_s < 10
    assert 0 < len(citations) <= MOST_CITATIONS
    assert all(len(citation.lines) <= 400 for citation in citations)
