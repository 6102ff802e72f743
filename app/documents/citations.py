"""Citations of a reply: places in documents that it names, or whose words are in its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from app.documents.passages import bm25, cut, words_of
from app.documents.read import Document
from app.documents.text_file import PAGE_LINE, PASSAGE_NAME, files_of
from app.text.record import record

MOST_CITATIONS = 8
_MOST_SEARCHED = 40
"""Limit on the mentions, and on the sentences, that are searched in a reply."""
_AROUND_LINES = 40
_MOST_LINES = 400
_MOST_LINE_CHARS = 2000
_NEAR_CHARS = 120
"""Distance at which the name of a document may precede a page number."""
_PIECE_CHARS = 600
_LEAST_WORDS = 2
_LEAST_SHARE = 0.6
"""Share of a sentence's words that a place must have."""
_SHORT_CHARS = 80
_MOST_MARKED_LINES = 4
"""Limit on the lines of a page that a sentence is found in."""
_MOST_CLAUSES = 8
_CLAUSE_END = re.compile(r"[,;:]\s|\s(?:and|und|et|y)\s")
"""End of a part of a sentence that may be a fact of its own."""
_MENTION = re.compile(
    r"\b(?:(p(?:ages?|p?\.))|l(?:ines?|l?\.))\s?(\d{1,7})(?:\s?(?:-|\u2013|to)\s?(\d{1,7}))?\b",
    re.IGNORECASE,
)
_OF = re.compile(r"^\s(?:of|in|from)\s[\"'`*]?")
_FILE = re.compile(r"[\w-]\.[A-Za-z]\w{1,4}\b\W{0,3}$")
"""End of a file name."""
_SENTENCE_END = re.compile(r"(?<=\w\w\w\w[.!?])\s|\n|\u3002")
"""End of a sentence, but not after "Mrs." or "No."."""


@record
class Citation:
    """Lines of a document with the lines around them."""

    name: str
    """Name of the document."""
    location: str
    """Location in words: "page 3", "lines 10-20"."""
    before: tuple[str, ...]
    lines: tuple[str, ...]
    after: tuple[str, ...]
    first: int
    """Line number of the first of ``lines``; 0 if only pages are known."""

    @property
    def shown(self) -> str:
        """Name of the document with the location in it."""
        return f"{self.name} {self.location}"


_Piece = tuple["_SentDocument", int, int, str]
"""Document with start, end and text of a page or passage in it."""


class _SentDocument:
    """A document, or a passage of one, in a message."""

    def __init__(self, name: str, text: str) -> None:
        passage = PASSAGE_NAME.fullmatch(name)
        if passage:
            self.name = passage[1]
        else:
            self.name = name
        self.is_whole = passage is None
        is_pdf = self.name.lower().endswith(".pdf")
        if passage:
            self.unit = passage[3]
        elif is_pdf:
            self.unit = "page"
        else:
            self.unit = "line"
        if passage:
            self.first = int(passage[4])
        else:
            self.first = 1
        self.lines = text.split("\n")
        self.document = Document(self.name, Path(self.name), text)

    def named(
        self, unit: str, first: int, last: int, rare_words: Set[str] = frozenset()
    ) -> Citation | None:
        """Return the pages or lines with these numbers; None if the text has none of them.

        Args:
            rare_words: words of the sentence that names them; of a page, only the lines with most
                of these words are marked.
        """
        if unit != self.unit:
            return None
        numbers = self._numbers()
        indices = [index for index, number in enumerate(numbers) if first <= number <= last]
        if not indices:
            return None
        start = indices[0]
        end = indices[-1] + 1
        if unit == "page" and len(rare_words) >= _LEAST_WORDS:
            start, end = _narrowed(self, start, end, rare_words)
        return self.place(start, end, numbers)

    def place(self, start: int, end: int, numbers: Sequence[int] = ()) -> Citation:
        """Return the lines from one index up to another, which is not included."""
        numbers = numbers or self._numbers()
        end = min(end, start + _MOST_LINES)
        first = numbers[start]
        last = numbers[end - 1]
        if first == last:
            location = f"{self.unit} {first}"
        else:
            location = f"{self.unit}s {first}-{last}"
        lines_before, lines, lines_after = (
            tuple(line[:_MOST_LINE_CHARS] for line in self.lines[first_index:last_index])
            for first_index, last_index in (
                (max(0, start - _AROUND_LINES), start),
                (start, end),
                (end, end + _AROUND_LINES),
            )
        )
        return Citation(
            self.name,
            location,
            lines_before,
            lines,
            lines_after,
            first if self.unit == "line" else 0,
        )

    def pieces(self) -> list[tuple[int, int, str]]:
        """Return pages or passages as start, end and text."""
        if self.unit == "line":
            return [
                (passage.first - 1, passage.last, passage.text)
                for passage in cut(self.document, _PIECE_CHARS)
            ]
        starts = [
            index
            for index, linesage in enumerate(self.lines)
            if index == 0 or PAGE_LINE.fullmatch(linesage)
        ]
        ranges = zip(starts, [*starts[1:], len(self.lines)], strict=True)
        return [(start, end, "\n".join(self.lines[start:end])) for start, end in ranges]

    def _numbers(self) -> list[int]:
        """Return the line number or page number of each line."""
        if self.unit == "line":
            return list(range(self.first, self.first + len(self.lines)))
        numbers = []
        page = self.first
        for line in self.lines:
            if page_line := PAGE_LINE.fullmatch(line):
                page = int(page_line[1][:7])
            numbers.append(page)
        return numbers


def find_citations(reply: str, questions: Sequence[str]) -> tuple[Citation, ...]:
    """Return the citations of a reply, named ones first, at most ``MOST_CITATIONS``.

    Args:
        reply: text of the reply.
        questions: user messages up to the question, with their documents, oldest first.
    """
    documents = [
        _SentDocument(name, text)
        for message in reversed(questions)
        for name, text in files_of(message)
    ]
    if not documents:
        return ()
    sent_passages = [
        document
        for document in documents[: sum(1 for _ in files_of(questions[-1]))]
        if not document.is_whole
    ]
    sentences = [*_SENTENCE_END.split(reply)[:_MOST_SEARCHED]]
    if len(reply) < _SHORT_CHARS:  # an answer like "1871." has too few words
        sentences.append(f"{questions[-1].rpartition('```')[2]} {reply}")
    citations = [
        *_named(reply, documents),
        *_alike(sentences, documents),
        *(citationument.place(0, len(citationument.lines)) for citationument in sent_passages),
    ]
    return tuple(
        {(citation.name, citation.location): citation for citation in reversed(citations)}.values()
    )[::-1][:MOST_CITATIONS]


def _named(reply: str, documents: Sequence[_SentDocument]) -> Iterator[Citation]:
    """Yield the places that a reply names, such as "(report.pdf, p. 3)".

    A place without a name is in the only document.
    """
    names = {document.name for document in documents}
    for mention, _ in zip(_MENTION.finditer(reply), range(_MOST_SEARCHED), strict=False):
        name = _document_of(reply, mention, names)
        first = int(mention[2])
        if mention[1]:
            unit = "page"
        else:
            unit = "line"
        rare_words = _rare_words(_SENTENCE_END.split(reply[: mention.start()])[-1])
        citations = (
            document.named(unit, first, int(mention[3] or first), rare_words)
            for document in documents
            if document.name == name
        )
        yield from [citation for citation in citations if citation is not None][:1]


def _document_of(reply: str, mention: re.Match[str], names: Iterable[str]) -> str:
    """Return the document of a mention: the one named next to it, or the only one; "" if there is
    neither.
    """
    text_before = reply[max(0, mention.start() - _NEAR_CHARS) : mention.start()]
    text_after = _OF.sub("", reply[mention.end() : mention.end() + _NEAR_CHARS], count=1)
    next_names = [candidate for candidate in names if text_after.startswith(candidate)] or [
        candidate for candidate in names if candidate in text_before
    ]
    if next_names:
        return max(
            next_names,
            key=lambda candidate: (text_before.rfind(candidate) + len(candidate), len(candidate)),
        )
    if not _FILE.search(text_before):
        single_names = list(names)
    else:
        single_names = []
    if len(single_names) == 1:
        return single_names[0]
    return ""


def _alike(sentences: Sequence[str], documents: Sequence[_SentDocument]) -> Iterator[Citation]:
    """Yield for each sentence the page or lines with most of its words, if there are enough.

    Of several documents, the parts of a sentence may be from different ones.
    """
    pieces = [(document, *piece) for document in documents for piece in document.pieces()]
    words = [words_of(text) for *_, text in pieces]
    for sentence in sentences:
        citation = _most_alike(sentence, pieces, words)
        if citation is not None:
            yield citation
        clauses = _CLAUSE_END.split(sentence)[:_MOST_CLAUSES]
        if len(documents) == 1 or len(clauses) == 1:
            continue
        for clause in clauses:
            part = _most_alike(clause, pieces, words)
            if part is not None and (citation is None or part.name != citation.name):
                yield part


def _most_alike(
    sentence: str, pieces: Sequence[_Piece], words: Sequence[Sequence[str]]
) -> Citation | None:
    """Return the lines with most of a sentence's words; None if no piece has enough of them.

    Args:
        words: words of each piece.
    """
    rare_words = _rare_words(sentence)
    if len(rare_words) < _LEAST_WORDS:
        return None
    scores = bm25(list(rare_words), words)
    best = max(range(len(scores)), key=scores.__getitem__)
    if len(rare_words.intersection(words[best])) < _LEAST_SHARE * len(rare_words):
        return None
    document, start, end, _ = pieces[best]
    return document.place(*_narrowed(document, start, end, rare_words))


def _rare_words(sentence: str) -> set[str]:
    return {
        word
        for word in words_of(_MENTION.sub(" ", sentence))
        if len(word) > 3 or not word.isascii() or word.isdigit()
    }


def _narrowed(
    document: _SentDocument, start: int, end: int, rare_words: Set[str]
) -> tuple[int, int]:
    """Return the few lines of a page or passage with most of these words, or all of its lines if
    the words are not close together."""
    shared = [rare_words & set(words_of(text)) for text in document.lines[start:end]]
    windows = [
        (index, size)
        for size in range(1, _MOST_MARKED_LINES + 1)
        for index in range(len(shared) - size + 1)
        if shared[index]
    ]
    if not windows:
        return start, end

    def n_words(window: tuple[int, int]) -> int:
        index, size = window
        return len(set().union(*shared[index : index + size]))

    best = max(windows, key=n_words)  # of several, the first, which is the shortest
    if n_words(best) < _LEAST_SHARE * len(rare_words):
        return start, end
    return start + best[0], start + best[0] + best[1]
