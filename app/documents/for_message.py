"""Choice of the documents that go with a message: all of them, or where the context is too small, passages of them."""

from __future__ import annotations

from collections.abc import Sequence

from app.documents.passages import fitting
from app.documents.read import Document
from app.text import figures
from app.text.record import record


@record
class FileText:
    """A text that goes with a message.

    Attributes:
        name: of its chip.
        in_message: as it stands in the message: named, and between fences.
        text: what of it is the file's own.
    """

    name: str
    in_message: str
    text: str


def n_tokens(documents: Sequence[Document]) -> int:
    """Return the tokens of documents, about."""
    return sum(one.n_tokens for one in documents)


def fit(documents: Sequence[Document], n_ctx: int) -> bool:
    """Whether documents fit into a context and leave a quarter of it; 0 where there is no model yet, which may tell."""
    return not n_ctx or n_tokens(documents) <= n_ctx * 3 // 4


def whole(documents: Sequence[Document]) -> list[FileText]:
    """Return the documents as they go with a message."""
    return [FileText(one.name, one.in_message, one.text) for one in documents]


def for_message(documents: Sequence[Document], question: str, n_ctx: int, in_context: str = "") -> list[FileText]:
    """Return what goes with a question: the documents, or passages of them.

    Args:
        in_context: what the context holds of earlier messages: it is not sent again.
    """
    if fit(documents, n_ctx):
        return whole([one for one in documents if one.in_message.strip() not in in_context])
    chars_per_token = sum(len(one.text) for one in documents) / n_tokens(documents)
    first, later = _passages_tokens(n_ctx)
    rooms_chars = int(chars_per_token * first), int(chars_per_token * later)
    passages = fitting(documents, question, rooms_chars, in_context)
    if not passages:
        return []
    name = f"passages of {figures.counted(len(documents), 'file')}"
    in_message, own = " ".join(one.in_message for one in passages), "\n".join(one.text for one in passages)
    return [FileText(name, in_message, own)]


def with_question(texts: Sequence[str], question: str) -> str:
    """Return a message: documents, then what is asked about them."""
    return " ".join([*texts, question])


def announcement(documents: Sequence[Document], n_ctx: int, prefill_tps: float) -> str:
    """Say what documents will cost before they are read."""
    n, (most, later) = n_tokens(documents), _passages_tokens(n_ctx)
    what = documents[0].name if len(documents) == 1 else figures.counted(len(documents), "file")
    if fit(documents, n_ctx):
        return f"{what}: about {figures.count(n)} tokens{_duration(n, prefill_tps)}"
    chosen = "passages that fit the next question go with it"
    return (
        f"{what}: about {figures.count(n)} tokens, the context holds {figures.count(n_ctx)}: {chosen}, at most"
        f" {figures.count(most)} tokens{_duration(most, prefill_tps)}; later questions add what is new, at most"
        f" {figures.count(later)}"
    )


def _passages_tokens(n_ctx: int) -> tuple[int, int]:
    """Return the limits on the passages of the first question about documents, and of each later one."""
    return n_ctx // 2, n_ctx // 8


def _duration(n: int, prefill_tps: float) -> str:
    return f", about {figures.whole_seconds(n / prefill_tps)} to read" if prefill_tps > 0 else ""
