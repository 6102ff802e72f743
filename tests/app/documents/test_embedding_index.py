"""Passages found by meaning: joined rankings, and vectors made, saved, limited and deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.documents import embedding_index as meaning
from app.documents.embedding_index import EmbeddingFile, EmbeddingIndex
from app.documents.passages import fitting, merge_ranks
from app.documents.read import Document, about_tokens
from app.models.library.header import embedding_file
from app.program.settings import built_in_settings
from engine import Model
from tests.engine import tiny_gguf
from tests.engine.architectures import encoders

pytestmark = pytest.mark.slow

WORDS = (
    "fan",
    "screw",
    "blade",
    "hinge",
    "lid",
    "key",
    "foot",
    "port",
    "lamp",
    "cell",
    "disk",
    "wire",
)
BOOK = "\n\n".join(f"{word} " * (1100 // (len(word) + 1)) for word in WORDS)


def passage_words(
    question: str, similarities: dict[str, float] | None, in_context: str = ""
) -> set[str]:
    """Return the words of the passages sent with a question."""

    def similarity(question: str, texts: Sequence[str]) -> list[float | None]:
        words = [text.split()[0] for text in texts]
        return [
            None if similarities is None else similarities.get(word, 0.02 * WORDS.index(word))
            for word in words
        ]

    document = Document("a", Path("/a"), BOOK, about_tokens(BOOK))
    passages = fitting([document], question, (8000, 1300), in_context, similarity)
    return {word for passage in passages for word in passage.text.split()}


def test_reciprocal_ranks_of_both_orders_are_added() -> None:
    ranks = merge_ranks([0.0, 2.0, 1.0], [0.9, None, 0.1])
    assert ranks == pytest.approx([1 / 61, 1 / 61, 1 / 62 + 1 / 62])


def test_a_passage_in_other_words_is_found_by_its_meaning() -> None:
    assert passage_words("a screw gives light?", None) == {"screw"}
    assert "lamp" in passage_words("a screw gives light?", {"lamp": 0.8, "screw": 0.2})


def test_later_questions_add_only_outstanding_passages() -> None:
    in_context = BOOK.split("\n\n")[0]
    assert passage_words("thanks", {"lamp": 0.3}, in_context) == set()
    assert passage_words("what gives light?", {"lamp": 0.95}, in_context) == {"lamp"}
    assert passage_words("thanks", None, in_context) == set()


@pytest.fixture
def file(tmp_path: Path) -> EmbeddingFile:
    return EmbeddingFile(encoders.bert().write(tmp_path / "bert.gguf"), "1")


@pytest.mark.smoke
def test_vectors_are_made_once_and_deleted_with_their_document(
    file: EmbeddingFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "vectors.db"
    search = EmbeddingIndex(path, lambda: file)
    texts = ["the sea", "a cat on the mat", "a " * 400]  # the last is longer than the model's limit
    assert search.similarities("a sea", texts) == [None] * 3
    may_continue = [True, False]
    assert not search.learn("book", texts, lambda: may_continue.pop(0))
    assert search.learn("book", texts, lambda: True)
    assert search.learn("plan", ["he ran"], lambda: True)
    monkeypatch.setattr(meaning, "_vector", lambda model, text: pytest.fail("the vector was saved"))
    assert search.learn("book", texts, lambda: True)
    monkeypatch.undo()
    model = Model.open(file.path, threads=1)
    expected_vectors = [
        model.embedder.embed(model.tokenizer.encode(text, special=False)[:128])
        for text in ("a sea", *texts)
    ]
    model.close()
    assert search.similarities("a sea", [*texts, "other"])[3] is None
    similarities = search.similarities("a sea", texts)
    assert np.allclose(
        np.array(similarities, float),
        [expected_vectors[0] @ vector for vector in expected_vectors[1:]],
        atol=2e-3,
    )
    assert (
        EmbeddingIndex(path, lambda: replace(file, stamp="2")).similarities("a sea", texts)
        == [None] * 3
    )
    search.keep_only(["plan"])
    assert search.similarities("a sea", texts) == [None] * 3
    assert search.similarities("a sea", ["he ran"])[0] is not None


def test_the_oldest_vectors_are_deleted_first(
    file: EmbeddingFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(meaning, "MOST_VECTORS", 2)
    search = EmbeddingIndex(tmp_path / "vectors.db", lambda: file)
    search.learn("book", ["one", "two", "three"], lambda: True)
    assert [
        similarity is None for similarity in search.similarities("a", ["one", "two", "three"])
    ] == [
        True,
        False,
        False,
    ]


def test_failures_are_treated_as_a_missing_model(file: EmbeddingFile, tmp_path: Path) -> None:
    path = tmp_path / "vectors.db"
    for without in (EmbeddingIndex(path, lambda: None), EmbeddingIndex(None, lambda: file)):
        assert without.learn("book", ["one"], lambda: True)
        assert without.similarities("a", ["one"]) == [None]
    search = EmbeddingIndex(path, lambda: file)
    search.learn("book", ["one", "two"], lambda: True)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE vector SET value=? WHERE number=1", (b"\x00\x7c" * 64,))  # infinite
        db.execute("UPDATE vector SET value=? WHERE number=2", (b"abc",))
    assert search.similarities("a", ["one", "two"]) == [None, None]
    path.write_bytes(b"no database at all" * 100)
    assert search.similarities("a", ["one"]) == [None]
    assert search.learn("book", ["one"], lambda: True)
    assert not path.exists()  # deleted, to be made again
    assert search.learn("book", ["one"], lambda: True)
    assert search.similarities("a", ["one"]) != [None]
    search.keep_only([])
    path.unlink()
    broken = EmbeddingIndex(path, lambda: EmbeddingFile(path.with_name("gone.gguf"), "1"))
    assert broken.learn("book", ["one"], lambda: True)


def test_the_smallest_embedding_model_of_this_machine_is_taken(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "chat.gguf", "qwen3")
    encoders.judging(encoders.bert("Q8_0"), 1, has_dense=False).write(tmp_path / "judge.gguf")
    encoders.bert("F32", n_layers=3).write(tmp_path / "large.gguf")
    settings = replace(built_in_settings(), model_directories=(str(tmp_path),))
    model = embedding_file(settings)
    assert model is not None
    assert model.path.name == "large.gguf"
    encoders.bert("Q8_0").write(tmp_path / "small.gguf")
    model = embedding_file(settings)
    assert model is not None
    assert model.path.name == "small.gguf"
    assert embedding_file(replace(settings, search_by_meaning="off")) is None
