"""Tokens of earlier conversations on disk, from which replies are guessed; in the engine thread.

Each conversation has a file, in a directory for each vocabulary, with the tokens that the cache had
after its last reply. The files are a disposable cache: what cannot be read or written is ignored.
``Store.delete`` deletes those of a conversation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from app.backend.local.saved_states import StateLocation
from app.program import paths
from app.program.settings import Settings
from app.program.small_file import read_bounded, replace_file
from app.text.guesses import EARLIER, guess_kinds

if TYPE_CHECKING:
    from engine import Session
    from engine.sampling.earlier_text import EarlierText

MOST_TOKENS = 1 << 18
"""Limit on all conversations, those used last first: 1 MB on disk, 6 MB in memory, and a quarter of
a second to sort."""
_TOKEN_BYTES = 4


class EarlierTexts:
    """Saves the tokens of the live conversation, and gives a session those of the others.

    Args:
        location: place on disk of the live conversation.
        has_other_work: returns whether other work waits.
    """

    def __init__(
        self,
        location: StateLocation,
        settings: Settings,
        tokenizer: Any,
        session: Session,
        has_other_work: Callable[[], bool],
    ) -> None:
        self._location = location
        self._tokenizer = tokenizer
        self._session = session
        self._has_other_work = has_other_work
        is_allowed = EARLIER in guess_kinds(settings.guess_ahead)
        self._is_on = is_allowed and settings.save_conversations == "on"
        self._new: set[str] | None = None
        """Names of conversations saved since the session got the others; None before it did."""

    def save(self) -> None:
        """Save the live conversation, in a millisecond and without waiting for the disk."""
        import numpy as np  # which no first frame waits for

        path = self._location.state_path
        directory = self._directory()
        if path is not None and directory is not None:
            with suppress(OSError):
                tokens = np.array(self._session.tokens[-MOST_TOKENS:], "<i4")
                replace_file(directory / path.name, tokens.tobytes(), durable=False)
                if self._new is not None:
                    self._new.add(path.name)

    def give(self) -> None:
        """Give the session the tokens of other conversations, if they are new and no work waits.

        If guessing is off, delete all files.
        """
        live = ""
        if self._location.state_path is not None:
            live = self._location.state_path.name
        if self._has_other_work() or (self._new is not None and not self._new - {live}):
            return
        directory = self._directory()
        self._new = set()
        if directory is not None:
            self._session.earlier_text = _read(directory, self._tokenizer.vocab_size)
        elif not self._is_on and (root := paths.guesses_dir()) is not None:
            rmtree(root, ignore_errors=True)

    def _directory(self) -> Path | None:
        if not self._is_on:
            return None
        root = paths.private_directory(paths.guesses_dir())
        if root is None:
            return None
        return paths.private_directory(root / self._tokenizer.fingerprint)


def saved_texts(tokenizer: Any) -> EarlierText | None:
    """Return the texts of all saved conversations with a vocabulary; None if there are none."""
    root = paths.guesses_dir()
    if root is None:
        return None
    return _read(root / tokenizer.fingerprint, tokenizer.vocab_size)


def _read(directory: Path, vocab_size: int) -> EarlierText | None:
    """Return the texts used last, as many as there is room for, and delete the others."""
    import numpy as np

    from engine.sampling.earlier_text import EarlierText

    n_free = MOST_TOKENS
    texts = []
    with suppress(OSError):
        files = [
            (entry.stat(follow_symlinks=False).st_mtime, entry.path)
            for entry in os.scandir(directory)
        ]
        for _, path in sorted(files, reverse=True):
            with suppress(OSError):
                content = None
                if n_free:
                    content = read_bounded(Path(path), _TOKEN_BYTES * n_free)
                if content is None:
                    n_free = 0
                    os.unlink(path)
                    continue
                n_bytes = len(content) // _TOKEN_BYTES * _TOKEN_BYTES
                texts.append(np.frombuffer(content[:n_bytes], "<i4"))
                n_free -= len(texts[-1])
    if not texts:
        return None
    return EarlierText(texts[::-1], vocab_size)
