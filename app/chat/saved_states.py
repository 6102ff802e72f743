"""The state of the cache on disk, in the engine's thread: kept for the live conversation, brought back at the start.

A conversation has a state for each model and type of cache that it was had with, so that going back to one finds its
own; the quota lets those used longest ago go. A state is a disposable cache: whatever is wrong with one costs a line
and the reading of what it held. It is compared with the conversation token by token, as the cache itself always is, so
one that is older or longer does no harm.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.chat.wire import FLUSH_S
from app.program import paths
from app.program.refusals import exit_code_of, log_without_text
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    from engine import Session

ASIDE_SUFFIX = ".refused"
LEAST_PREFIX_TOKENS = 32
"""A shorter system prompt is read sooner than a file is opened."""
LEAST_TAKEN_TOKENS = 64
"""Fewer tokens than that are read sooner than the states of other conversations are looked through."""
MOST_LOOKED_THROUGH = 64
"""States of other conversations that are looked through, those changed last: about 2 ms each."""
NEW_PREFIX_FLUSH_S = 5.0
_PREFIX_SUFFIX = ".state"


class StateWriter(Protocol):
    """Writes one session's state in a thread of its own; see ``engine.saved_state``."""

    @property
    def problem(self) -> str | None:
        """Why nothing is saved."""

    def note(self) -> None:
        """The session grew or was cut."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is on disk."""

    def close(self) -> None:
        """End."""


class Place(Protocol):
    """Where the live conversation's state belongs.

    Attributes:
        state_path: what the names of its files begin with; None keeps nothing.
        state_file: the one that is kept; None before it is known.
        state_trouble: why nothing is kept; "" if all is well.
    """

    state_path: Path | None
    state_file: Path | None
    state_trouble: str


def _none_kept(kind: str) -> Iterable[Path]:
    return ()


@record
class StateFiles:
    """How states are written and read.

    Attributes:
        restore: fills an empty session from a file as far as it is wanted; returns what has ``tokens`` and ``seconds``.
        restorable: says how many tokens of those wanted a file would bring back.
        writer: begins to keep a session's state in a file.
        fingerprint: names a model by its contents.
        prefixes: where the states of system prompts are; None keeps none.
        may_read_prefix: whether the engine may work before anything was asked.
        kept: lists the places of all conversations' states for one model and type of cache; some may not exist.
    """

    restore: Callable[[Any, Path, Sequence[int]], Any]
    restorable: Callable[[Any, Path, Sequence[int]], int]
    writer: Callable[[Any, Path], StateWriter]
    fingerprint: Callable[[Any], str]
    prefixes: Path | None = None
    may_read_prefix: Callable[[], bool] = bool
    kept: Callable[[str], Iterable[Path]] = _none_kept


@record
class BroughtBack:
    """Result of restoring a state.

    Attributes:
        trouble: why it was not used; "" for none.
    """

    tokens: int = 0
    seconds: float = 0.0
    trouble: str = ""


class SavedStates:
    """States of one session.

    Args:
        place: says which file belongs to the live conversation.
        files: how; None keeps nothing.
        is_wanted: whether the thread has something else to do.
    """

    def __init__(self, place: Place, files: StateFiles | None, is_wanted: Callable[[], bool] = lambda: False) -> None:
        self._place, self._files, self._is_wanted = place, files, is_wanted
        self._session: Session | None = None
        self._model: Any = None
        self._writer: StateWriter | None = None
        self._path: Path | None = None
        """The place's, whose state the writer keeps."""

    def note_opened(self, model: Any, session: Session) -> None:
        """Another session is there."""
        self.note_closing()
        self._model, self._session = model, session

    def note_closing(self, patience_s: float = FLUSH_S) -> None:
        """The session goes: what it holds is kept as far as that takes no longer."""
        if self._writer is None:
            self.note_progress()  # a first reply may have been over before the place was known
        self.leave(patience_s)
        self._session = self._model = None

    def leave(self, patience_s: float = FLUSH_S) -> None:
        """Another conversation comes next: what the cache holds of this one is kept as far as that takes no time."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.flush(patience_s)
        self._drop_writer()

    def note_progress(self) -> None:
        """The session grew; cheap, between two tokens or blocks."""
        if self._files is None or self._session is None:
            return
        try:
            if self._path != self._place.state_path:
                self._follow(self._place.state_path)
            if self._writer is not None:
                self._writer.note()
                self._place.state_trouble = self._writer.problem or ""
        except Exception as error:  # a cache is not worth a reply
            self._writer = None
            self._place.state_trouble = reason_in_a_line(error)

    def bring_back(self, path: Path | None, ids: Sequence[int]) -> BroughtBack:
        """Fill the cache with a conversation's state for this model, if that holds more of it than the cache does.

        Args:
            path: what the names of its states begin with; None for none.
            ids: the conversation.
        """
        if self._files is None or self._session is None or path is None:
            return BroughtBack()
        try:
            file = self._place.state_file = self._file_of(path)
        except Exception as error:
            return BroughtBack(trouble=f"the saved state is not used: {reason_in_a_line(error)}")
        return self._restore(file, ids)

    def reusable(self, ids: Sequence[int]) -> int:
        """Return the tokens of a prompt that need not be computed: the cache holds them, or the file kept from it."""
        session = self._session
        assert session is not None
        n_cached = session.reusable(ids)
        if (file := self._file_of_lost(ids)) is not None and self._files is not None:
            with suppress(Exception):  # what is wrong with the file is said where it is restored
                return max(n_cached, min(self._files.restorable(session, file, ids), len(ids) - 1))
        return n_cached

    def go_back(self, ids: Sequence[int]) -> None:
        """Read from the file what a prompt needs and the layers' memory does not hold any more.

        A sliding layer keeps the end of the conversation only: an edit or another reply may begin before that.
        """
        if (file := self._file_of_lost(ids)) is not None:
            self.leave()
            self._restore(file, ids)

    def take_over(self, ids: Sequence[int]) -> int:
        """Fill the cache from another conversation that begins with more of a prompt than the cache holds.

        The same document, asked about anew, is read once only. What is taken over is this conversation's from then on.

        Returns:
            Number of tokens that need not be computed now and had to be before; 0 where nothing was taken over.
        """
        session, files = self._session, self._files
        if session is None or files is None:
            return 0
        n_held = session.reusable(ids)
        if len(ids) - n_held < LEAST_TAKEN_TOKENS:
            return 0
        best, most = None, n_held + LEAST_TAKEN_TOKENS - 1
        for path in self._changed_last(files):
            with suppress(Exception):  # whoever goes on with it says what is wrong with it
                n = min(files.restorable(session, path, ids), len(ids) - 1)
                if n > most:
                    best, most = path, n
        if best is None:
            return 0
        self.leave()
        session.truncate(0)
        with suppress(Exception):
            files.restore(session, best, ids)
        return max(0, session.reusable(ids) - n_held)

    def _changed_last(self, files: StateFiles) -> list[Path]:
        """Other conversations' states, those changed last first."""
        changed_s = {}
        for path in files.kept(self._kind()):
            with suppress(OSError):
                changed_s[path] = path.stat().st_mtime
        newest = sorted(changed_s, key=lambda path: changed_s[path], reverse=True)
        return [path for path in newest if path != self._place.state_file][:MOST_LOOKED_THROUGH]

    def _file_of_lost(self, ids: Sequence[int]) -> Path | None:
        """Return the file that may hold what the layers' memory lost of a prompt; None where nothing was lost."""
        if self._writer is None or self._session is None or not self._session.has_lost(ids):
            return None
        return self._place.state_file

    def _restore(self, path: Path, ids: Sequence[int]) -> BroughtBack:
        session, files = self._session, self._files
        assert files is not None
        assert session is not None
        self._drop_writer()
        try:
            if not path.exists():
                return BroughtBack()
            if files.restorable(session, path, ids) <= session.reusable(ids):
                return BroughtBack()
            session.truncate(0)
            restored = files.restore(session, path, ids)
            return BroughtBack(restored.tokens, restored.seconds)
        except Exception as error:
            if not getattr(error, "is_newer", False):  # a newer version may still want its own
                with suppress(OSError):
                    os.replace(path, path.with_name(path.name + ASIDE_SUFFIX))
            return BroughtBack(trouble=f"the saved state is not used: {reason_in_a_line(error)}")

    # ---- system prompts

    def begin_with(self, ids: Sequence[int]) -> None:
        """A conversation begins with these tokens: bring them back, or read and keep them while nothing is asked."""
        files, session = self._files, self._session
        if files is None or session is None or files.prefixes is None or len(ids) < LEAST_PREFIX_TOKENS:
            return
        self._drop_writer()
        if session.reusable([*ids, -1]) == len(ids):
            return
        directory = paths.private_directory(files.prefixes)
        if directory is None:
            return
        try:
            path = directory / self._prefix_name(ids)
            if path.exists():
                self._restore(path, ids)
            elif files.may_read_prefix():
                self._read_and_keep(ids, path)
        except Exception as error:
            if exit_code_of(error) is None:
                log_without_text(error)

    def _prefix_name(self, ids: Sequence[int]) -> str:
        assert self._files is not None
        assert self._session is not None
        tokens = zlib.crc32(b"".join(int(one).to_bytes(4, "little") for one in ids))
        return f"{self._kind()}-{tokens:08x}-{len(ids)}{_PREFIX_SUFFIX}"

    def _file_of(self, path: Path) -> Path:
        """The state of a conversation for the present model and type of cache."""
        return path.with_name(f"{path.name}.{self._kind()}")

    def _kind(self) -> str:
        """Whose keys and values these are: states of another kind are of no use here."""
        assert self._files is not None
        assert self._session is not None
        return f"{self._files.fingerprint(self._model)[:16]}-{self._session.kv_type}"

    def _read_and_keep(self, ids: Sequence[int], path: Path) -> None:
        assert self._files is not None
        assert self._session is not None
        session = self._session

        def give_way(*_: int) -> None:
            if self._is_wanted():
                session.cancel()

        if self._is_wanted():
            return
        session.prefill(ids, on_progress=give_way)
        own = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # another program may be keeping the same prompt
        writer = self._files.writer(session, own)
        try:
            writer.note()
            is_whole = writer.flush(NEW_PREFIX_FLUSH_S)
        finally:
            writer.close()
        if is_whole:
            os.replace(own, path)
        else:
            own.unlink(missing_ok=True)

    # ---- the writer

    def _follow(self, path: Path | None) -> None:
        self._drop_writer()
        self._path, self._place.state_file = path, None
        if path is not None:
            assert self._files is not None
            file = self._place.state_file = self._file_of(path)
            self._writer = self._files.writer(self._session, file)

    def _drop_writer(self) -> None:
        writer, self._writer, self._path = self._writer, None, None
        if writer is not None:
            with suppress(Exception):
                writer.close()


def reason_in_a_line(error: Exception) -> str:
    """Say what is wrong; a bug goes to the log and is named by its type."""
    if isinstance(error, OSError) and error.strerror:
        return clean_line(error.strerror, 120)
    if exit_code_of(error) is not None:
        return clean_line(str(error), 200)
    log_without_text(error)
    return f"internal error: {type(error).__name__}"
