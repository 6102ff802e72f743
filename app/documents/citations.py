"""The places in documents that a reply speaks of: those it names, and those that have the words of
its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from app.documents.passages import bm25, cut, words_of
from app.documents.read import Document
from app.documents.text_file import PAGE_LINE, PASSAGE_NAME, files_of
from app.text.record import record

MOST_PLACES = 8
_MOST_LOOKED_AT = 40
"""Mentions, and sentences, of a reply; the rest of a longer one is not looked at."""
_AROUND_LINES = 40
_MOST_LINES = 400
_MOST_LINE_CHARS = 2000
_NEAR_CHARS = 120
"""How long before its page a document may be named."""
_PIECE_CHARS = 600
_LEAST_WORDS = 2
_LEAST_SHARE = 0.6
"""Of the words of a sentence, that a place must have."""
_SHORT_CHARS = 80
_MENTION = re.compile(
    r"\b(?:(p(?:ages?|p?\.))|l(?:ines?|l?\.))\s?(\d{1,7})(?:\s?(?:-|\u2013|to)\s?(\d{1,7}))?\b",
    re.IGNORECASE,
)
_OF = re.compile(r"^\s(?:of|in|from)\s[\"'`*]?")
_FILE = re.compile(r"[\w-]\.[A-Za-z]\w{1,4}\b\W{0,3}$")
"""The end of some file's name."""
_SENTENCE_END = re.compile(r"(?<=\w\w\w\w[.!?])\s|\n|\u3002")
"""Not after "Mrs." or "No."."""


@record
class Citation:
    """Lines of a document, and those around them, as a conversation has them."""

    name: str
    """Of the document."""
    where: str
    """In words: "page 3", "lines 10-20"."""
    before: tuple[str, ...]
    lines: tuple[str, ...]
    after: tuple[str, ...]
    first: int
    """Number of the first of ``lines`` in the document; 0 where only its pages are known."""

    @property
    def shown(self) -> str:
        """Its document and where it is there."""
        return f"{self.name} {self.where}"


class _SentDocument:
    """A document, or a passage of one, as a message has it."""

    def __init__(self, name: str, text: str) -> None:
        found = PASSAGE_NAME.fullmatch(name)
        if found:
            self.name = found[1]
        else:
            self.name = name
        self.is_whole = found is None
        is_pdf = self.name.lower().endswith(".pdf")
        if found:
            self.what = found[3]
        elif is_pdf:
            self.what = "page"
        else:
            self.what = "line"
        if found:
            self.first = int(found[4])
        else:
            self.first = 1
        self.lines = text.split("\n")
        self.document = Document(self.name, Path(self.name), text)

    def named(self, what: str, first: int, last: int) -> Citation | None:
        """Return the pages or lines with these numbers, as far as they are here."""
        if what != self.what:
            return None
        numbers = self._numbers()
        found = [at for at, number in enumerate(numbers) if first <= number <= last]
        if found:
            return self.place(found[0], found[-1] + 1, numbers)
        return None

    def place(self, start: int, end: int, numbers: Sequence[int] = ()) -> Citation:
        """Return the lines from one index to the one before another."""
        numbers = numbers or self._numbers()
        end = min(end, start + _MOST_LINES)
        first = numbers[start]
        last = numbers[end - 1]
        if first == last:
            where = f"{self.what} {first}"
        else:
            where = f"{self.what}s {first}-{last}"
        before, lines, after = (
            tuple(line[:_MOST_LINE_CHARS] for line in self.lines[one:other])
            for one, other in (
                (max(0, start - _AROUND_LINES), start),
                (start, end),
                (end, end + _AROUND_LINES),
            )
        )
        return Citation(self.name, where, before, lines, after, first if self.what == "line" else 0)

    def pieces(self) -> list[tuple[int, int, str]]:
        """Return where its pages, or passages of it, begin and end, and their texts."""
        if self.what == "line":
            return [(one.first - 1, one.last, one.text) for one in cut(self.document, _PIECE_CHARS)]
        starts = [at for at, one in enumerate(self.lines) if at == 0 or PAGE_LINE.fullmatch(one)]
        ranges = zip(starts, [*starts[1:], len(self.lines)], strict=True)
        return [(start, end, "\n".join(self.lines[start:end])) for start, end in ranges]

    def _numbers(self) -> list[int]:
        """Return the number of each line, or of the page that it is on."""
        if self.what == "line":
            return list(range(self.first, self.first + len(self.lines)))
        numbers = []
        page = self.first
        for line in self.lines:
            if found := PAGE_LINE.fullmatch(line):
                page = int(found[1][:7])
            numbers.append(page)
        return numbers


def find_citations(reply: str, asked: Sequence[str]) -> tuple[Citation, ...]:
    """Return the places that a reply speaks of, at most ``MOST_PLACES``: those first that it names.

    Args:
        reply: its text.
        asked: the user's messages up to its question, with their documents, the oldest first.
    """
    kept = [
        _SentDocument(name, text) for message in reversed(asked) for name, text in files_of(message)
    ]
    if not kept:
        return ()
    brought = [one for one in kept[: sum(1 for _ in files_of(asked[-1]))] if not one.is_whole]
    sentences = [*_SENTENCE_END.split(reply)[:_MOST_LOOKED_AT]]
    if len(reply) < _SHORT_CHARS:  # "1871." says too little
        sentences.append(f"{asked[-1].rpartition('```')[2]} {reply}")
    found = [
        *_named(reply, kept),
        *_alike(sentences, kept),
        *(one.place(0, len(one.lines)) for one in brought),
    ]
    return tuple({(one.name, one.where): one for one in reversed(found)}.values())[::-1][
        :MOST_PLACES
    ]


def _named(reply: str, kept: Sequence[_SentDocument]) -> Iterator[Citation]:
    """Yield what a reply names, such as "(report.pdf, p.

    3)"; without a name it is of the only document.
    """
    names = {one.name for one in kept}
    for mention, _ in zip(_MENTION.finditer(reply), range(_MOST_LOOKED_AT), strict=False):
        name = _document_of(reply, mention, names)
        first = int(mention[2])
        if mention[1]:
            what = "page"
        else:
            what = "line"
        places = (
            one.named(what, first, int(mention[3] or first)) for one in kept if one.name == name
        )
        yield from [place for place in places if place is not None][:1]


def _document_of(reply: str, mention: re.Match[str], names: Iterable[str]) -> str:
    """Return the document that a mention is of: one named next to it, else the only one; "" for
    none of these."""
    near = reply[max(0, mention.start() - _NEAR_CHARS) : mention.start()]
    after = _OF.sub("", reply[mention.end() : mention.end() + _NEAR_CHARS], count=1)
    named = [name for name in names if after.startswith(name)] or [
        name for name in names if name in near
    ]
    if named:
        return max(named, key=lambda name: (near.rfind(name) + len(name), len(name)))
    if not _FILE.search(near):
        only = list(names)
    else:
        only = []
    if len(only) == 1:
        return only[0]
    return ""


def _alike(sentences: Sequence[str], kept: Sequence[_SentDocument]) -> Iterator[Citation]:
    """Yield for each sentence the page or the lines that have most of its words, if they have
    enough."""
    pieces = [(one, *piece) for one in kept for piece in one.pieces()]
    words = [words_of(text) for *_, text in pieces]
    for sentence in sentences:
        wanted = {
            one
            for one in words_of(_MENTION.sub(" ", sentence))
            if len(one) > 3 or not one.isascii() or one.isdigit()
        }
        if len(wanted) < _LEAST_WORDS:
            continue
        scores = bm25(list(wanted), words)
        at = max(range(len(scores)), key=scores.__getitem__)
        if len(wanted.intersection(words[at])) >= _LEAST_SHARE * len(wanted):
            one, start, end, _ = pieces[at]
            shared = [len(wanted.intersection(words_of(text))) for text in one.lines[start:end]]
            if one.what == "line" and max(shared) >= _LEAST_SHARE * len(wanted):
                start += shared.index(max(shared))
                end = start + 1
            yield one.place(start, end)
