"""What of the documents goes with a message: all, or where the context is too small, the passages
that answer best.

BM25 with k1 = 1.2 and b = 0.75, and the logarithm of Lucene for the rarity of a word, which is
never negative. Where an embedding model says how alike passages are to the question, both orders
are joined by reciprocal ranks (Cormack et al. 2009): each passage counts 1 / (60 + its place) in
both.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from app.documents.plain_letters import plain_letters
from app.documents.read import Document
from app.documents.text_file import PAGE_LINE, attached
from app.text import figures
from app.text.record import record

K1 = 1.2
B = 0.75
RANK_CONSTANT = 60
OUTSTANDING = 3.0
"""From how many standard deviations above the mean on the likeness of a passage says that it
answers."""
Likeness = Callable[[str, Sequence[str]], Sequence[float | None]]
"""Returns how alike texts are to a question; None where that is not known."""
PASSAGE_CHARS = 1200
"""About 300 tokens: long enough to be understood alone, short enough that several fit."""
_LEAST_CHARS = 120
"""Length of a passage in the smallest context."""
_WORD = re.compile(r"[^\W\u3040-\u9fff]+|[\u3040-\u9fff]")
"""A word; in scripts without spaces, a character."""


@record
class Passage:
    """Neighbouring lines of a document, numbered from 1 on."""

    document: Document
    first: int
    last: int
    text: str

    @property
    def place(self) -> str:
        """Where it is: the lines, or the pages of a PDF."""
        what = "line"
        first = self.first
        last = self.last
        if self.document.path.suffix.lower() == ".pdf":
            what = "page"
            first = _page(self.document, self.first)
            last = _page(self.document, self.last)
        if first == last:
            return f"{what} {first}"
        return f"{what}s {first}-{last}"

    @property
    def in_message(self) -> str:
        """The passage as it is in a message."""
        return attached(f"{self.document.name}, {self.place}", self.text)


def words_of(text: str) -> list[str]:
    """Return the words of a text, whatever their case."""
    return _WORD.findall(plain_letters(text).casefold())


def bm25(question: Sequence[str], texts: Iterable[Sequence[str]]) -> list[float]:
    """Return for each text, given by its words, how well it answers to the words of a question.

    The words of one text at a time are in memory.
    """
    wanted = set(question)
    found = []
    lengths = []
    for words in texts:
        found.append(Counter(word for word in words if word in wanted))
        lengths.append(len(words))
    n_texts = len(lengths)
    mean_length = sum(lengths) / max(1, n_texts) or 1.0
    n_with = Counter(word for counts in found for word in counts)
    rarity = {word: math.log(1 + (n_texts - n + 0.5) / (n + 0.5)) for word, n in n_with.items()}
    scores = []
    for counts, length in zip(found, lengths, strict=True):
        norm = K1 * (1 - B + B * length / mean_length)
        scores.append(sum(rarity[word] * n * (K1 + 1) / (n + norm) for word, n in counts.items()))
    return scores


def merge_ranks(scores: Sequence[float], similarities: Sequence[float | None]) -> list[float]:
    """Return the sum of the reciprocal ranks of each by its score, where it has one, and by its
    likeness."""
    by_words = sorted((i for i, one in enumerate(scores) if one > 0), key=lambda i: -scores[i])
    known = {i: one for i, one in enumerate(similarities) if one is not None}
    ranks = [0.0] * len(scores)
    for order in (by_words, sorted(known, key=lambda i: -known[i])):
        for place, i in enumerate(order, 1):
            ranks[i] += 1 / (RANK_CONSTANT + place)
    return ranks


def _outstanding(similarities: Sequence[float | None]) -> set[int]:
    """Return those that are far more alike than the others."""
    from statistics import fmean, pstdev  # which no first frame waits for

    known = {i: one for i, one in enumerate(similarities) if one is not None}
    if len(known) < 2 or not (spread := pstdev(known.values())):
        return set()
    least = fmean(known.values()) + OUTSTANDING * spread
    return {i for i, one in known.items() if one >= least}


def _unknown(question: str, texts: Sequence[str]) -> Sequence[float | None]:
    return [None] * len(texts)


def fitting(
    documents: Sequence[Document],
    question: str,
    rooms_chars: tuple[int, int],
    in_context: str = "",
    similarities: Likeness = _unknown,
) -> list[Passage]:
    """Return the passages that answer best to a question and fit, in the order in which they are in
    the documents.

    Where the context holds some already, only those come that are new and answer at least half as
    well as the best of all, or whose meaning stands out: nothing is read for a word of thanks, and
    what was read stays in its place. The second of ``rooms_chars`` is for such a later question.
    """
    most_chars = min(PASSAGE_CHARS, max(_LEAST_CHARS, rooms_chars[0] // 6))
    passages = [passage for document in documents for passage in cut(document, most_chars)]
    scores = bm25(words_of(question), (words_of(passage.text) for passage in passages))
    known = {
        index for index, passage in enumerate(passages) if in_context and passage.text in in_context
    }
    alike = similarities(question, [passage.text for passage in passages])
    ranks = merge_ranks(scores, alike)
    best = max(scores, default=0.0)
    candidates = set(range(len(passages))) - known
    if known:
        outstanding = _outstanding(alike)
        candidates = {i for i in candidates if i in outstanding or (best and scores[i] >= best / 2)}
    elif any(ranks):  # where nothing has a word of the question, the beginning is the best there is
        candidates = {i for i in candidates if ranks[i]}
    if known:
        room_chars = rooms_chars[1]
    else:
        room_chars = rooms_chars[0]
    chosen = []
    for index in sorted(candidates, key=lambda i: (-ranks[i], i)):
        room_chars -= len(passages[index].in_message)
        if room_chars < 0:
            break
        chosen.append(index)
    return _joined([passages[index] for index in sorted(chosen)])


def cut(document: Document, most_chars: int) -> Iterator[Passage]:
    """Cut a document into passages: where a paragraph ends, or where one becomes too long."""
    begun: list[str] = []
    first = 1
    n_chars = 0
    for number, line in enumerate(document.text.split("\n"), 1):
        for start in range(0, max(1, len(line)), most_chars):
            piece = line[start : start + most_chars]
            is_break = n_chars > most_chars // 2 and not piece.strip()
            if begun and (is_break or n_chars + len(piece) > most_chars):
                yield Passage(document, first, max(first, number - (start == 0)), "\n".join(begun))
                begun = []
                n_chars = 0
            if not begun:
                first = number
            begun.append(piece)
            n_chars += len(piece) + 1
    if any(piece.strip() for piece in begun):
        yield Passage(document, first, number, "\n".join(begun))


def _joined(passages: Sequence[Passage]) -> list[Passage]:
    """Make one of passages that follow on each other."""
    joined: list[Passage] = []
    for passage in passages:
        if joined:
            before = joined[-1]
        else:
            before = None
        if (
            before is not None
            and before.document is passage.document
            and before.last + 1 == passage.first
        ):
            text = f"{before.text}\n{passage.text}"
            joined[-1] = Passage(passage.document, before.first, passage.last, text)
        else:
            joined.append(passage)
    return joined


def _page(document: Document, line: int) -> int:
    """Return the page of a PDF that a line of its text is on."""
    pages = [
        int(match[1])
        for one in document.text.split("\n")[:line]
        if (match := PAGE_LINE.fullmatch(one))
    ]
    if pages:
        return pages[-1]
    return 1


@record
class FileText:
    """A text that goes with a message."""

    name: str
    """Of its chip."""
    in_message: str
    """As it is in the message: named, and between fences."""
    text: str
    """What of it is the file's own."""


def n_tokens(documents: Sequence[Document]) -> int:
    """Return the tokens of documents, about."""
    return sum(one.n_tokens for one in documents)


def fit(documents: Sequence[Document], n_ctx: int) -> bool:
    """Whether documents fit into a context and leave a quarter of it; 0 where there is no model
    yet, which may tell."""
    return not n_ctx or n_tokens(documents) <= n_ctx * 3 // 4


def whole(documents: Sequence[Document]) -> list[FileText]:
    """Return the documents as they go with a message."""
    return [FileText(one.name, one.in_message, one.text) for one in documents]


def for_message(
    documents: Sequence[Document],
    question: str,
    n_ctx: int,
    in_context: str = "",
    similarities: Likeness = _unknown,
) -> list[FileText]:
    """Return what goes with a question of what the context does not hold yet: the documents, or
    passages of them."""
    if fit(documents, n_ctx):
        return whole([one for one in documents if one.in_message.strip() not in in_context])
    chars_per_token = sum(len(one.text) for one in documents) / n_tokens(documents)
    first, later = _passages_tokens(n_ctx)
    rooms_chars = int(chars_per_token * first), int(chars_per_token * later)
    passages = fitting(documents, question, rooms_chars, in_context, similarities)
    if not passages:
        return []
    name = f"passages of {figures.counted(len(documents), 'file')}"
    in_message = " ".join(one.in_message for one in passages)
    own = "\n".join(one.text for one in passages)
    return [FileText(name, in_message, own)]


def announcement(documents: Sequence[Document], n_ctx: int, prefill_tps: float) -> str:
    """Say what documents will cost before they are read."""
    n = n_tokens(documents)
    (most, later) = _passages_tokens(n_ctx)
    if len(documents) == 1:
        what = documents[0].name
    else:
        what = figures.counted(len(documents), "file")
    if fit(documents, n_ctx):
        return f"{what}: about {figures.count(n)} tokens{_duration(n, prefill_tps)}"
    chosen = "passages that fit the next question go with it"
    return (
        f"{what}: about {figures.count(n)} tokens, the context holds {figures.count(n_ctx)}: "
        f"{chosen}, at most"
        f" {figures.count(most)} tokens{_duration(most, prefill_tps)}; later questions add "
        f"what is new, at most"
        f" {figures.count(later)}"
    )


def _passages_tokens(n_ctx: int) -> tuple[int, int]:
    """Return the limits on the passages of the first question about documents, and of each later
    one."""
    return n_ctx // 2, n_ctx // 8


def _duration(n: int, prefill_tps: float) -> str:
    if prefill_tps > 0:
        return f", about {figures.whole_seconds(n / prefill_tps)} to read"
    return ""
