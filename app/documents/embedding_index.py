"""Search for passages by meaning, with vectors from an embedding model of this machine.

Vectors are computed while the program is idle. They are saved in a database that may be deleted at
any time, until their document is removed from the list.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.text.record import record
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine import Model

MOST_VECTORS = 20_000
"""Limit on the saved vectors, of 0.8 to 2 kB each. The oldest are deleted first."""
MOST_AT_ONCE = 5_000
"""Limit on the passages of one document."""
_PATIENCE_S = 2.0
_SCHEMA = """
PRAGMA secure_delete=ON;
PRAGMA synchronous=OFF;
CREATE TABLE IF NOT EXISTS vector (
    number INTEGER PRIMARY KEY, passage BLOB, model TEXT, document TEXT, value BLOB,
    UNIQUE (passage, model, document)
);
"""


@record
class EmbeddingFile:
    """The file of an embedding model."""

    path: Path
    stamp: str
    """Text that changes when the file changes."""


class EmbeddingIndex:
    """Compares texts by meaning. Any thread may use it; errors count as unknown similarity.

    Args:
        path: path of the database; None to save nothing.
        find_model: returns the file of an embedding model, or None if there is none or it is turned
        off.
    """

    def __init__(self, path: Path | None, find_model: Callable[[], EmbeddingFile | None]) -> None:
        self._path = path
        self._find_model = find_model

    def learn(self, document: str, texts: Sequence[str], may_continue: Callable[[], bool]) -> bool:
        """Compute and save the missing vectors of a document's passages.

        Args:
            document: key of the document.
            may_continue: called before each passage; returns False to stop for now.

        Returns:
            Whether no vector is left to compute.
        """
        file = self._find_model()
        if file is None or self._path is None:
            return True
        try:
            with self._database() as db:
                passages = {_key(text): text for text in texts[:MOST_AT_ONCE]}
                sql = "SELECT passage FROM vector WHERE model=? AND document=?"
                saved_keys = {row[0] for row in db.execute(sql, (file.stamp, document))}
                if passages.keys() <= saved_keys:
                    return True
                with _opened(file) as model:
                    for key in [
                        passage_key for passage_key in passages if passage_key not in saved_keys
                    ]:
                        if not may_continue():
                            return False
                        _put(
                            db,
                            (
                                key,
                                file.stamp,
                                document,
                                _vector(model, passages[key]).astype("<f2").tobytes(),
                            ),
                        )
        except (sqlite3.DatabaseError, UnicodeDecodeError):  # a damaged database is made again
            self._path.unlink(missing_ok=True)
        except (EngineError, OSError):
            pass
        return True

    def similarities(self, question: str, texts: Sequence[str]) -> list[float | None]:
        """Return the similarity of each text to a question, from -1 to 1; None if it is not
        known.
        """
        file = self._find_model()
        keys = [_key(text) for text in texts]
        unknown: list[float | None] = [None] * len(texts)
        if file is None or self._path is None or not question.strip() or not self._path.exists():
            return unknown
        try:
            with self._database() as db:
                sql = "SELECT value FROM vector WHERE passage=? AND model=? LIMIT 1"
                rows = [db.execute(sql, (key, file.stamp)).fetchone() for key in keys]
            if not any(rows):
                return unknown
            with _opened(file) as model:
                question_vector = _vector(model, question)
        except (EngineError, sqlite3.Error, UnicodeDecodeError, OSError):
            return unknown
        return [_product(question_vector, row[0]) if row else None for row in rows]

    def keep_only(self, documents: Sequence[str]) -> None:
        """Delete the vectors of all other documents."""
        if self._path is not None and self._path.exists():
            with suppress(sqlite3.Error, UnicodeDecodeError), self._database() as db, db:
                marks = ",".join("?" * len(documents))
                db.execute(f"DELETE FROM vector WHERE document NOT IN ({marks})", documents)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        assert self._path is not None
        with closing(sqlite3.connect(self._path, timeout=_PATIENCE_S)) as db:
            db.executescript(_SCHEMA)
            yield db


def _put(db: sqlite3.Connection, row: tuple[bytes, str, str, bytes]) -> None:
    with db:
        db.execute(
            "INSERT OR REPLACE INTO vector (passage, model, document, value) VALUES (?, ?, ?, ?)",
            row,
        )
        db.execute(
            "DELETE FROM vector WHERE number <= (SELECT MAX(number) FROM vector) - ?",
            (MOST_VECTORS,),
        )


@contextmanager
def _opened(file: EmbeddingFile) -> Iterator[Model]:
    from engine import Model

    model = Model.open(file.path, threads=1)  # the other cores stay free for the user
    try:
        yield model
    finally:
        model.close()


def _vector(model: Model, text: str) -> Any:
    """Return the vector of a text, or of its beginning if it is too long."""
    embedder = model.embedder
    return embedder.embed(model.tokenizer.encode(text, special=False)[: embedder.n_ctx])


def _product(question_vector: Any, value: bytes) -> float | None:
    import numpy as np

    if len(value) == 2 * len(question_vector):
        vector = np.frombuffer(value, "<f2").astype(np.float32)
    else:
        vector = None
    if vector is None or not np.isfinite(vector).all():
        return None
    return float(question_vector @ vector)


def _key(text: str) -> bytes:
    from hashlib import blake2b  # the first frame does not need it

    return blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
