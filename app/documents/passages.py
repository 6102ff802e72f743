"""Documents as they go with a message: whole, or as the passages that match the question best.

Passages are scored by BM25 (k1 = 1.2, b = 0.75, with Lucene's idf, which is never negative). With
an embedding model, both rankings are merged by reciprocal ranks (Cormack et al. 2009): each passage
gets 1 / (60 + rank) from both.
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
"""Number of standard deviations above the mean from which a similarity counts as a match."""
Likeness = Callable[[str, Sequence[str]], Sequence[float | None]]
"""Function that returns the similarity of texts to a question; None if it is not known."""
PASSAGE_CHARS = 1200
"""Length of a passage, about 300 tokens: long enough to make sense, short enough that several
fit.
"""
_LEAST_CHARS = 120
"""Length of a passage in the smallest context."""
_WORD = re.compile(r"[^\W\u3040-\u9fff]+|[\u3040-\u9fff]")
"""A word; in scripts without spaces, one character."""


@record
class Passage:
    """Consecutive lines of a document, numbered from 1."""

    document: Document
    first: int
    last: int
    text: str

    @property
    def place(self) -> str:
        """Location in words: the lines, or the pages of a PDF."""
        unit = "line"
        first = self.first
        last = self.last
        if self.document.path.suffix.lower() == ".pdf":
            unit = "page"
            first = _page(self.document, self.first)
            last = _page(self.document, self.last)
        if first == last:
            return f"{unit} {first}"
        return f"{unit}s {first}-{last}"

    @property
    def in_message(self) -> str:
        """Text of the passage for a message."""
        return attached(f"{self.document.name}, {self.place}", self.text)


def words_of(text: str) -> list[str]:
    """Return the words of a text, case-folded."""
    return _WORD.findall(plain_letters(text).casefold())


def bm25(question: Sequence[str], texts: Iterable[Sequence[str]]) -> list[float]:
    """Return the BM25 score of each text, given as words, for the words of a question.

    Only the words of one text are in memory at a time.
    """
    question_words = set(question)
    word_counts = []
    lengths = []
    for words in texts:
        word_counts.append(Counter(word for word in words if word in question_words))
        lengths.append(len(words))
    n_texts = len(lengths)
    mean_length = sum(lengths) / max(1, n_texts) or 1.0
    n_with = Counter(word for counts in word_counts for word in counts)
    rarity = {word: math.log(1 + (n_texts - n + 0.5) / (n + 0.5)) for word, n in n_with.items()}
    scores = []
    for counts, length in zip(word_counts, lengths, strict=True):
        norm = K1 * (1 - B + B * length / mean_length)
        scores.append(sum(rarity[word] * n * (K1 + 1) / (n + norm) for word, n in counts.items()))
    return scores


def merge_ranks(scores: Sequence[float], similarities: Sequence[float | None]) -> list[float]:
    """Return the sums of reciprocal ranks, by score if it is positive and by similarity if it is
    known.
    """
    by_words = sorted((i for i, value in enumerate(scores) if value > 0), key=lambda i: -scores[i])
    known_similarities = {i: value for i, value in enumerate(similarities) if value is not None}
    ranks = [0.0] * len(scores)
    for order in (by_words, sorted(known_similarities, key=lambda i: -known_similarities[i])):
        for rank, i in enumerate(order, 1):
            ranks[i] += 1 / (RANK_CONSTANT + rank)
    return ranks


def _outstanding(similarities: Sequence[float | None]) -> set[int]:
    """Return the indices of similarities that stand out from the others."""
    from statistics import fmean, pstdev  # the first frame does not need it

    known = {i: value for i, value in enumerate(similarities) if value is not None}
    if len(known) < 2 or not (spread := pstdev(known.values())):
        return set()
    least = fmean(known.values()) + OUTSTANDING * spread
    return {i for i, value in known.items() if value >= least}


def _unknown(question: str, texts: Sequence[str]) -> Sequence[float | None]:
    return [None] * len(texts)


def fitting(
    documents: Sequence[Document],
    question: str,
    limits_chars: tuple[int, int],
    in_context: str = "",
    similarities: Likeness = _unknown,
) -> list[Passage]:
    """Return the passages that match a question best and fit, in document order.

    If some passages are in the context already, only new ones are added whose score is at least
    half of the best, or whose meaning stands out. So a word of thanks adds nothing.

    Args:
        limits_chars: limits for the first question, and for each later one.
    """
    most_chars = min(PASSAGE_CHARS, max(_LEAST_CHARS, limits_chars[0] // 6))
    passages = [passage for document in documents for passage in cut(document, most_chars)]
    scores = bm25(words_of(question), (words_of(passage.text) for passage in passages))
    sent = {
        index for index, passage in enumerate(passages) if in_context and passage.text in in_context
    }
    passage_similarities = similarities(question, [passage.text for passage in passages])
    ranks = merge_ranks(scores, passage_similarities)
    best = max(scores, default=0.0)
    candidates = set(range(len(passages))) - sent
    if sent:
        outstanding = _outstanding(passage_similarities)
        candidates = {i for i in candidates if i in outstanding or (best and scores[i] >= best / 2)}
    elif any(ranks):  # if no word matches, the beginning is the best choice
        candidates = {i for i in candidates if ranks[i]}
    if sent:
        left_chars = limits_chars[1]
    else:
        left_chars = limits_chars[0]
    chosen = []
    for index in sorted(candidates, key=lambda i: (-ranks[i], i)):
        left_chars -= len(passages[index].in_message)
        if left_chars < 0:
            break
        chosen.append(index)
    return _joined([passages[index] for index in sorted(chosen)])


def cut(document: Document, most_chars: int) -> Iterator[Passage]:
    """Yield passages of a document, cut where a paragraph ends or becomes too long."""
    pieces: list[str] = []
    first = 1
    n_chars = 0
    for number, line in enumerate(document.text.split("\n"), 1):
        for start in range(0, max(1, len(line)), most_chars):
            piece = line[start : start + most_chars]
            is_break = n_chars > most_chars // 2 and not piece.strip()
            if pieces and (is_break or n_chars + len(piece) > most_chars):
                yield Passage(document, first, max(first, number - (start == 0)), "\n".join(pieces))
                pieces = []
                n_chars = 0
            if not pieces:
                first = number
            pieces.append(piece)
            n_chars += len(piece) + 1
    if any(piece.strip() for piece in pieces):
        yield Passage(document, first, number, "\n".join(pieces))


def _joined(passages: Sequence[Passage]) -> list[Passage]:
    """Join consecutive passages."""
    joined: list[Passage] = []
    for passage in passages:
        if joined:
            previous = joined[-1]
        else:
            previous = None
        if (
            previous is not None
            and previous.document is passage.document
            and previous.last + 1 == passage.first
        ):
            text = f"{previous.text}\n{passage.text}"
            joined[-1] = Passage(passage.document, previous.first, passage.last, text)
        else:
            joined.append(passage)
    return joined


def _page(document: Document, line: int) -> int:
    """Return the page of a PDF on which a line is."""
    pages = [
        int(match[1])
        for row in document.text.split("\n")[:line]
        if (match := PAGE_LINE.fullmatch(row))
    ]
    if pages:
        return pages[-1]
    return 1


@record
class FileText:
    """A text that goes with a message."""

    name: str
    """Name on the chip."""
    in_message: str
    """Text for the message, with name and fences."""
    text: str
    """Text of the file alone."""


def n_tokens(documents: Sequence[Document]) -> int:
    """Return the estimated tokens of documents."""
    return sum(document.n_tokens for document in documents)


def fit(documents: Sequence[Document], n_ctx: int) -> bool:
    """Whether documents fit a context and leave a quarter of it free.

    True without a model (``n_ctx`` is 0).
    """
    return not n_ctx or n_tokens(documents) <= n_ctx * 3 // 4


def whole(documents: Sequence[Document]) -> list[FileText]:
    """Return whole documents for a message."""
    return [FileText(document.name, document.in_message, document.text) for document in documents]


def for_message(
    documents: Sequence[Document],
    question: str,
    n_ctx: int,
    in_context: str = "",
    similarities: Likeness = _unknown,
) -> list[FileText]:
    """Return what goes with a question and is not in the context: the documents, or passages of
    them.
    """
    if fit(documents, n_ctx):
        return whole(
            [document for document in documents if document.in_message.strip() not in in_context]
        )
    shown = [document for document in documents if document.is_picture]
    new_pictures = whole(
        [document for document in shown if document.in_message.strip() not in in_context]
    )
    documents = [document for document in documents if not document.is_picture]
    if not documents:
        return new_pictures
    chars_per_token = sum(len(document.text) for document in documents) / n_tokens(documents)
    first, later = _passages_tokens(n_ctx)
    rooms_chars = int(chars_per_token * first), int(chars_per_token * later)
    passages = fitting(documents, question, rooms_chars, in_context, similarities)
    if not passages:
        return new_pictures
    name = f"passages of {figures.counted(len(documents), 'file')}"
    in_message = " ".join(passage.in_message for passage in passages)
    text = "\n".join(passage.text for passage in passages)
    return [*new_pictures, FileText(name, in_message, text)]


def announcement(documents: Sequence[Document], n_ctx: int, prefill_tps: float) -> str:
    """Return a line with the cost of documents before they are read."""
    n_document_tokens = n_tokens(documents)
    if len(documents) == 1:
        names = documents[0].name
        verb = "is"
    else:
        names = figures.counted(len(documents), "file")
        verb = "are"
    if fit(documents, n_ctx):
        duration = _duration(n_document_tokens, prefill_tps)
        return f"{names}: about {figures.count(n_document_tokens)} tokens{duration}"
    return (
        f"{names} {verb} too long for this model ({figures.count(n_document_tokens)} of "
        f"{figures.count(n_ctx)} tokens). Each question will get the passages that match it"
    )


def _passages_tokens(n_ctx: int) -> tuple[int, int]:
    """Return the limits on passages: for the first question, and for each later one."""
    return n_ctx // 2, n_ctx // 8


def _duration(count: int, prefill_tps: float) -> str:
    if prefill_tps > 0:
        return f", about {figures.whole_seconds(count / prefill_tps)} to read"
    return ""
