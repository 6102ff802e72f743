"""Contents of the cache on disk, in the engine's thread: kept for the live conversation, brought
back where it serves.

All conversations had with one model and type of cache share one directory, a tree of prefixes
(``engine.saved_state``): what was read once, in whichever conversation, is not read again. A state
is a disposable cache: whatever is wrong with it costs the reading of what it held. It is compared
with the conversation token by token, as the cache itself always is. Which segments a conversation
left there is noted with it, so that they go when it is deleted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.backend.engine_inbox import FLUSH_S, IdleWork
from app.conversations.state_files import SegmentRecorder, save_model_name
from app.program import paths
from app.program.refusals import exit_code_of, log_without_text
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    from engine import Session
    from engine.saved_state import StateWriter

LEAST_PREFIX_TOKENS = 32
"""A shorter system prompt is read sooner than files are opened."""
LEAST_TAKEN_TOKENS = 64
"""Fewer tokens than that are read sooner than saved ones are looked for."""
NEW_PREFIX_FLUSH_S = 5.0
_FLUSH_STEP_S = 0.1
_MOST_FLUSHES = 600
"""A document is saved in steps, between which a question comes first."""


class StateLocation(Protocol):
    """Place on disk for the states of the live conversation."""

    state_trouble: str
    """Reason why the state is not saved; empty if it is."""

    @property
    def state_path(self) -> Path | None:
        """Beginning of the paths of the states; None if they are not saved."""


@record
class StateFiles:
    """How states are written and read."""

    restore: Callable[[Any, Path, Sequence[int]], Any]
    """Fills an empty session with what a place has of a prompt; returns what has ``tokens`` and
    ``seconds``."""
    restorable: Callable[[Any, Path, Sequence[int]], int]
    """Says how many tokens of those wanted a place would bring back."""
    names: Callable[[Any, Path, Sequence[int]], list[str]]
    """Names the files in a place that hold tokens of those wanted alone."""
    writer: Callable[[Any, Path, Callable[[str], object]], StateWriter]
    """Begins to keep a session's state in a directory, and hands over the names of its segments."""
    may_read_prefix: Callable[[], bool] = bool
    """Whether the engine may work before anything was asked."""


@record
class RestoreOutcome:
    """Result of restoring a state. ``trouble``: why it was not used; "" for none."""

    tokens: int = 0
    seconds: float = 0.0
    trouble: str = ""


class SavedStates:
    """States of one session.

    Args:
        files: None keeps nothing.
        is_wanted: whether work waits.
        notes: whether segments are noted next to the place.
    """

    def __init__(
        self,
        place: StateLocation,
        files: StateFiles | None,
        model: Any,
        session: Session,
        is_wanted: Callable[[], bool] = lambda: False,
        notes: bool = True,
    ) -> None:
        self._place = place
        self._files = files
        self._model = model
        self._session = session
        self._is_wanted = is_wanted
        self._notes = notes
        self._writer: StateWriter | None = None
        self._path: Path | None = None
        """The place's, whose state the writer keeps."""

    def close(self, patience_s: float = FLUSH_S) -> None:
        """The session goes: what it holds is kept as far as that takes no longer."""
        if self._writer is None:
            self.update()  # a first reply may have been over before the place was known
        self.leave(patience_s)

    def leave(self, patience_s: float = FLUSH_S) -> None:
        """Another conversation comes next: what the cache holds of this one is kept as far as that
        takes no time."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.flush(patience_s)
        self._drop_writer()

    def update(self) -> None:
        """The session grew; cheap, between two tokens or blocks."""
        if self._files is None:
            return
        try:
            if self._path != self._place.state_path:
                self._follow(self._files, self._place.state_path)
            if self._writer is not None:
                self._writer.notify()
                self._place.state_trouble = self._writer.problem or ""
        except Exception as error:  # a cache is not worth a reply
            self._writer = None
            self._place.state_trouble = reason_in_a_line(error)

    def reusable(self, ids: Sequence[int]) -> int:
        """Return the tokens of a prompt that need not be computed: the cache holds them, or the
        disk."""
        n_held = self._session.reusable(ids)
        return max(n_held, min(self._most_saved(ids, n_held + LEAST_TAKEN_TOKENS)[1], len(ids) - 1))

    def restore(self, ids: Sequence[int], path: Path | None = None) -> RestoreOutcome:
        """Fill the cache with what is saved of a prompt, if that is more than the cache holds of
        it.

        It is another conversation's where that begins alike, and this one's where it was had
        before, or where sliding and recurrent layers cannot go back to what an edit or another
        reply begins from.

        Args:
            path: what the names of files about the conversation's states begin with, where it is
                taken up again.
        """
        session = self._session
        files = self._files
        if files is None:
            return RestoreOutcome()
        n_held = session.reusable(ids)
        place, _, trouble = self._most_saved(
            ids, n_held + (LEAST_TAKEN_TOKENS if path is None else 1)
        )
        if place is None:
            return RestoreOutcome(trouble=trouble)
        self.leave()
        session.truncate(0)
        try:
            restored = files.restore(session, place, ids)
        except Exception as error:
            return RestoreOutcome(trouble=f"the saved state is not used: {reason_in_a_line(error)}")
        return RestoreOutcome(restored.tokens, restored.seconds)

    def _most_saved(self, ids: Sequence[int], least: int) -> tuple[Path | None, int, str]:
        """Return where a prompt is saved, how much of it, and what was wrong; None and 0 for less
        than ``least``."""
        files = self._files
        if files is None or len(ids) < least:
            return None, 0, ""
        try:
            place = self._directory()
            if place is not None:
                n = files.restorable(self._session, place, ids)
            else:
                n = 0
        except Exception as error:
            return None, 0, f"the saved state is not used: {reason_in_a_line(error)}"
        if n >= least:
            return (place, n, "")
        return (None, 0, "")

    def begin_with(self, ids: Sequence[int]) -> None:
        """A conversation begins with these tokens: bring them back, or read and keep them while
        nothing is asked."""
        files = self._files
        session = self._session
        if files is None or len(ids) < LEAST_PREFIX_TOKENS:
            return
        self._drop_writer()
        if session.reusable([*ids, -1]) == len(ids):
            return
        try:
            if files.restorable(session, self._kept_in(), ids) > session.reusable(ids):
                session.truncate(0)
                files.restore(session, self._kept_in(), ids)
            if session.reusable([*ids, -1]) < len(ids) and files.may_read_prefix():
                self._read_and_keep(files, session, ids)
        except Exception as error:
            if exit_code_of(error) is None:
                log_without_text(error)

    def _read_and_keep(self, files: StateFiles, session: Session, ids: Sequence[int]) -> None:
        def give_way(*_: int) -> None:
            if self._is_wanted():
                session.cancel()

        if self._is_wanted():
            return
        session.prefill(ids, on_progress=give_way)
        with closing(files.writer(session, self._kept_in(), str)) as writer:
            writer.notify()
            writer.flush(NEW_PREFIX_FLUSH_S)

    def n_saved(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt are saved."""
        return self._most_saved(ids, 1)[1]

    def files_of(self, ids: Sequence[int]) -> tuple[Path, ...]:
        """Return the files that hold what is saved of a prompt, and nothing else."""
        if self._files is not None:
            place = self._directory()
        else:
            place = None
        files = self._files
        if place is None or files is None:
            return ()
        return tuple(place / name for name in files.names(self._session, place, ids))

    def read_apart(
        self, ids: Sequence[int], path: Path, idle_work: IdleWork, on_saved: Callable[[int], object]
    ) -> str:
        """Read what is not saved of a prompt in a session of its own, and save it; the present one
        stays as it is.

        Args:
            path: what the names of files begin with about the states of the conversation that the
                prompt is noted with.
            on_saved: called with the tokens that are saved by now.

        Returns:
            str: why it cannot go on; "" where it is done or gave way.
        """
        files = self._files
        present = self._session
        if files is None:
            return ""

        def save() -> None:
            writer.notify()
            on_saved(writer.saved_tokens)
            if writer.problem:
                session.cancel()

        try:
            place = self._kept_in()
            note = SegmentRecorder(path, self._kind).note
            with closing(self._model.session(present.n_ctx, present.kv_type)) as session:
                files.restore(session, place, ids)
                with closing(files.writer(session, place, note)) as writer:
                    idle_work.prefill(session, ids, save)
                    for _ in range(_MOST_FLUSHES):
                        if idle_work.is_dropped or writer.problem or writer.flush(_FLUSH_STEP_S):
                            break
                    return writer.problem or ""
        except Exception as error:
            return reason_in_a_line(error)

    @property
    def _kind(self) -> str:
        """Name of the model and the type of its cache: states of another kind cannot be
        restored."""
        return f"{self._model.fingerprint[:16]}-{self._session.kv_type.replace('/', '-')}"

    def _directory(self) -> Path | None:
        """The directory of this model and type of cache; None where it cannot be created."""
        root = paths.private_directory(paths.states_dir())
        if root is not None:
            return paths.private_directory(root / self._kind)
        return None

    def _kept_in(self) -> Path:
        """The same, with the model's name next to the segments.

        Raises OSError: it cannot be created.
        """
        directory = self._directory()
        if directory is None:
            raise PermissionError(errno.EACCES, "the directory for saved states is not writable")
        save_model_name(directory, str(self._model.name))
        return directory

    def _follow(self, files: StateFiles, path: Path | None) -> None:
        self._drop_writer()
        self._path = path
        if path is not None:
            on_segment = SegmentRecorder(path, self._kind).note if self._notes else str
            self._writer = files.writer(self._session, self._kept_in(), on_segment)

    def _drop_writer(self) -> None:
        writer = self._writer
        self._writer = None
        self._path = None
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
