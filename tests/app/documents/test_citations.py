"""Places in documents that a reply speaks of."""

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


def shown(reply: str, *asked: str) -> list[str]:
    return [one.shown for one in find_citations(reply, asked)]


def test_what_a_reply_names_is_found_where_the_document_has_it() -> None:
    place = find_citations("The price is given (report.pdf, p. 3).", [f"{REPORT} what?"])[0]
    assert (place.shown, place.lines[1]) == (
        "report.pdf page 3",
        "Coal was bought from Newcastle at nineteen shillings.",
    )
    assert place.before[-1].startswith("The steamer")
    assert (place.after, place.first) == ((), 0)
    lines = find_citations("See lines 10-12 of it.", [f"{NOTES} what?"])[0]
    assert (lines.shown, lines.first, len(lines.lines), len(lines.before)) == (
        "notes.md lines 10-12",
        10,
        3,
        9,
    )
    assert lines.lines[0] == "note 10 says nothing of worth"


def test_what_no_document_has_is_not_offered() -> None:
    both = f"{NOTES} {REPORT} what?"
    assert (
        shown("It is on page 9, and on line 3, and (other.pdf, page 1).", f"{REPORT} what?") == []
    )
    assert shown("It is on page 3.", both) == []  # of two documents none is named
    assert shown("notes.md says so on page 3, report.pdf on page 2.", both) == ["report.pdf page 2"]
    assert shown(
        "See data.md, line 3", f"{attached('a.md', 'x')} {attached('data.md', NOTES)} ?"
    ) == ["data.md line 3"]
    assert shown("See page 3.", "page 3 is not in a file") == shown("page 3") == []


def test_a_sentence_leads_to_the_place_that_has_its_words() -> None:
    reply = "You are welcome to ask for more. In March the steamer carried 214 passengers."
    assert shown(reply, f"{REPORT} how many?", "and again?") == ["report.pdf page 2"]
    log = attached(
        "log.txt", "Built in 1871.\nThe captain of the Corvina was Mrs. Eleanor Whitfield.\nFog."
    )
    assert shown("The captain of the Corvina was Mrs. Eleanor Whitfield.", f"{log} who?") == [
        "log.txt line 2"
    ]
    assert shown("1871.", f"{log} When was it built?") == ["log.txt line 1"]
    assert shown("Yes.", f"{log} Is it so?") == []
    book = attached("book.txt", "\n\n".join(f"{n} is here. " + f"word{n} " * 90 for n in range(9)))
    assert shown("It says word4 word5 nowhere. 4 times: word4 is here, here.", f"{book} ?") == [
        "book.txt line 9"
    ]
    assert shown("That is a fine question indeed, my friend.", f"{book} ?") == []


def test_passages_of_the_question_come_after_what_is_named() -> None:
    asked = (
        attached("r.pdf, pages 4-5", "tail\n[page 5]\nfive")
        + " "
        + attached("n.md, lines 7-8", "seven\neight")
    )
    assert shown("As page 5 of r.pdf says", f"{asked} what?") == [
        "r.pdf page 5",
        "r.pdf pages 4-5",
        "n.md lines 7-8",
    ]
    assert shown("As line 8 of n.md says", f"{asked} what?")[0] == "n.md line 8"
    assert shown("Yes.", f"{asked} what?", "and?") == []  # of an earlier question


def test_hostile_documents_and_replies_cost_little() -> None:
    text = "[page 99999999999]\n" + "[page 1]\n" * 2_000 + "x " * 50_000
    asked = [f"{attached('a.pdf', text)} {attached('b.md, lines 1-99999999999999', text)} ?"]
    reply = "a.pdf page 1-9999999, b.md line 1 " * 3000 + "pages " * 20_000
    began_s = time.process_time()
    found = find_citations(reply, asked)
    assert time.process_time() - began_s < 10
    assert 0 < len(found) <= MOST_CITATIONS
    assert all(len(one.lines) <= 400 for one in found)
