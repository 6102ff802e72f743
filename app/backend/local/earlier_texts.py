"""Tokens of earlier conversations on disk, which guesses of a reply come from too; in the engine's
thread.

A file for each conversation, in a directory for each vocabulary: as the cache had it after its last
reply, with documents and all. A disposable cache: what cannot be read or written is left out.
``Store.delete`` deletes a conversation's.
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

if TYPE_CHECKING:
    from engine import Session
    from engine.sampling.earlier_text import EarlierText

MOST_TOKENS = 1 << 18
"""Of all conversations, those used last: a megabyte on disk, six in memory, and a quarter of a
second to sort them."""
_TOKEN_BYTES = 4


class EarlierTexts:
    """Keeps the tokens of the live conversation, and gives a session those of the others.

    Args:
        place: where the live conversation is.
        is_wanted: whether work waits.
    """

    def __init__(
        self,
        place: StateLocation,
        settings: Settings,
        tokenizer: Any,
        session: Session,
        is_wanted: Callable[[], bool],
    ) -> None:
        self._place = place
        self._tokenizer = tokenizer
        self._session = session
        self._is_wanted = is_wanted
        self._is_on = settings.guess_ahead == "on" and settings.save_conversations == "on"
        self._new: set[str] | None = None
        """Names of conversations kept after the others were given; None before they were."""

    def keep(self) -> None:
        """Write down the conversation; in a millisecond, without waiting for the disk."""
        import numpy as np  # which no first frame waits for

        path = self._place.state_path
        directory = self._directory()
        if path is not None and directory is not None:
            with suppress(OSError):
                tokens = np.array(self._session.tokens[-MOST_TOKENS:], "<i4")
                replace_file(directory / path.name, tokens.tobytes(), durable=False)
                if self._new is not None:
                    self._new.add(path.name)

    def give(self) -> None:
        """Let guesses come from other conversations, if nothing waits and there are new ones;
        delete all where off."""
        if self._place.state_path is not None:
            live = self._place.state_path.name
        else:
            live = ""
        if self._is_wanted() or (self._new is not None and not self._new - {live}):
            return
        directory = self._directory()
        self._new = set()
        if directory is not None:
            self._session.earlier_text = _read(directory, self._tokenizer.vocab_size)
        elif not self._is_on and (root := paths.guesses_dir()) is not None:
            rmtree(root, ignore_errors=True)

    def _directory(self) -> Path | None:
        if self._is_on:
            root = paths.private_directory(paths.guesses_dir())
        else:
            root = None
        if root is not None:
            return paths.private_directory(root / self._tokenizer.fingerprint)
        return None


def _read(directory: Path, vocab_size: int) -> EarlierText | None:
    """Return the texts used last, as many as there is room for, and delete the others."""
    import numpy as np

    from engine.sampling.earlier_text import EarlierText

    left = MOST_TOKENS
    texts = []
    with suppress(OSError):
        found = [
            (one.stat(follow_symlinks=False).st_mtime, one.path) for one in os.scandir(directory)
        ]
        for _, path in sorted(found, reverse=True):
            with suppress(OSError):
                if left:
                    raw = read_bounded(Path(path), _TOKEN_BYTES * left)
                else:
                    raw = None
                if raw is None:
                    left = 0
                    os.unlink(path)
                else:
                    texts.append(
                        np.frombuffer(raw[: len(raw) // _TOKEN_BYTES * _TOKEN_BYTES], "<i4")
                    )
                    left -= len(texts[-1])
    if texts:
        return EarlierText(texts[::-1], vocab_size)
    return None
