"""Passages that mean what a question means, though their words differ: vectors by an embedding
model of this machine.

They are made while nothing is asked, and kept in a database until their document is taken off the
shelf.
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
"""Limit on those that are kept, of 0.8 to 2 kB; the oldest go first."""
MOST_AT_ONCE = 5_000
"""Limit on the passages of one document."""
_PATIENCE_S = 2.0
_SCHEMA = """
PRAGMA secure_delete=ON;
PRAGMA synchronous=OFF;
CREATE TABLE IF NOT EXISTS vector (
    number INTEGER PRIMARY KEY, passage BLOB, model TEXT, document TEXT, value BLOB, UNIQUE (passage, model, document)
);
"""


@record
class EmbeddingFile:
    """A file of an embedding model."""

    path: Path
    stamp: str
    """Changes with the file."""


class EmbeddingIndex:
    """Compares texts by what they mean. Any thread may ask; what fails is as if there were no
    model.

    Args:
        path: of the database; None keeps nothing.
        find_model: finds a file that makes vectors; None where there is none, or it is not wanted.
    """

    def __init__(self, path: Path | None, find_model: Callable[[], EmbeddingFile | None]) -> None:
        self._path = path
        self._find_model = find_model

    def learn(self, document: str, texts: Sequence[str], goes_on: Callable[[], bool]) -> bool:
        """Make the vectors of a document's passages that are not there yet.

        Args:
            document: its key, for ``keep_only``.
            goes_on: called before each of them; returns False to leave the rest for another time.

        Returns:
            Whether all are there, or no more can be made.
        """
        file = self._find_model()
        if file is None or self._path is None:
            return True
        try:
            with self._database() as db:
                wanted = {_key(text): text for text in texts[:MOST_AT_ONCE]}
                sql = "SELECT passage FROM vector WHERE model=? AND document=?"
                known = {row[0] for row in db.execute(sql, (file.stamp, document))}
                if wanted.keys() <= known:
                    return True
                with _opened(file) as model:
                    for key in [one for one in wanted if one not in known]:
                        if not goes_on():
                            return False
                        _put(
                            db,
                            (
                                key,
                                file.stamp,
                                document,
                                _vector(model, wanted[key]).astype("<f2").tobytes(),
                            ),
                        )
        except (sqlite3.DatabaseError, UnicodeDecodeError):  # damaged: it is made again
            self._path.unlink(missing_ok=True)
        except (EngineError, OSError):
            pass
        return True

    def similarities(self, question: str, texts: Sequence[str]) -> list[float | None]:
        """Return for each text how alike its meaning is to a question's, -1 to 1; None where that
        is not known."""
        file = self._find_model()
        keys = [_key(text) for text in texts]
        unknown: list[float | None] = [None] * len(texts)
        if file is None or self._path is None or not question.strip() or not self._path.exists():
            return unknown
        try:
            with self._database() as db:
                sql = "SELECT value FROM vector WHERE passage=? AND model=? LIMIT 1"
                found = [db.execute(sql, (key, file.stamp)).fetchone() for key in keys]
            if not any(found):
                return unknown
            with _opened(file) as model:
                asked = _vector(model, question)
        except (EngineError, sqlite3.Error, UnicodeDecodeError, OSError):
            return unknown
        return [_product(asked, row[0]) if row else None for row in found]

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

    model = Model.open(file.path, threads=1)  # the other cores are for who works at the machine
    try:
        yield model
    finally:
        model.close()


def _vector(model: Model, text: str) -> Any:
    """Return the vector of a text, or of its beginning where it is too long."""
    embedder = model.embedder
    return embedder.embed(model.tokenizer.encode(text, special=False)[: embedder.n_ctx])


def _product(asked: Any, value: bytes) -> float | None:
    import numpy as np

    if len(value) == 2 * len(asked):
        other = np.frombuffer(value, "<f2").astype(np.float32)
    else:
        other = None
    if other is None or not np.isfinite(other).all():
        return None
    return float(asked @ other)


def _key(text: str) -> bytes:
    from hashlib import blake2b  # which no first frame waits for

    return blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
