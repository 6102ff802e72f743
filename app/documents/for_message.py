"""Choice of the documents that go with a message: all of them, or where the context is too small, passages of them."""

from __future__ import annotations

from collections.abc import Sequence

from app.documents.passages import fitting
from app.documents.read import Document
from app.text import figures


def n_tokens(documents: Sequence[Document]) -> int:
    """Return the tokens of documents, about."""
    return sum(one.n_tokens for one in documents)


def fit(documents: Sequence[Document], n_ctx: int) -> bool:
    """Whether documents fit into a context and leave a quarter of it; 0 where there is no model yet, which may tell."""
    return not n_ctx or n_tokens(documents) <= n_ctx * 3 // 4


def for_message(documents: Sequence[Document], question: str, n_ctx: int) -> list[tuple[str, str]]:
    """Return what goes with a question, each text with the name of its chip: the documents, or passages of them."""
    if fit(documents, n_ctx):
        return [(one.name, one.in_message) for one in documents]
    chars_per_token = sum(len(one.text) for one in documents) / n_tokens(documents)
    passages = fitting(documents, question, int(chars_per_token * _passages_tokens(n_ctx)))
    return [(f"passages of {figures.counted(len(documents), 'file')}", " ".join(one.in_message for one in passages))]


def with_question(texts: Sequence[str], question: str) -> str:
    """Return a message: documents, then what is asked about them."""
    return " ".join([*texts, question])


def announcement(documents: Sequence[Document], n_ctx: int, prefill_tps: float) -> str:
    """Say what documents will cost before they are read."""
    n, most = n_tokens(documents), _passages_tokens(n_ctx)
    what = documents[0].name if len(documents) == 1 else figures.counted(len(documents), "file")
    if fit(documents, n_ctx):
        return f"{what}: about {figures.count(n)} tokens{_duration(n, prefill_tps)}"
    chosen = "passages that fit the next question go with it"
    return (
        f"{what}: about {figures.count(n)} tokens, the context holds {figures.count(n_ctx)}: {chosen}, at most"
        f" {figures.count(most)} tokens{_duration(most, prefill_tps)}"
    )


def _passages_tokens(n_ctx: int) -> int:
    return n_ctx // 2


def _duration(n: int, prefill_tps: float) -> str:
    return f", about {figures.whole_seconds(n / prefill_tps)} to read" if prefill_tps > 0 else ""
