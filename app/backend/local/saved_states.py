"""Saved states of the KV cache, in the engine thread: saved for the live conversation, restored
where they help.

All conversations with one model and KV type share a directory, a tree of prefixes
(``engine.saved_state``): what was read once in any conversation is not read again. A state is a
disposable cache: an error costs only the time to read its tokens. It is compared with the
conversation token by token, as the cache itself is. The names of a conversation's segments are
saved with it, so that they are deleted with it.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.backend.engine_link import FLUSH_S, IdleWork
from app.conversations.state_files import SegmentRecorder, save_model_name
from app.program import paths
from app.program.refusals import exit_code_of, log_without_text
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    from engine import Session
    from engine.saved_state import StateWriter

LEAST_PREFIX_TOKENS = 32
"""A shorter system prompt is read faster than files are opened."""
LEAST_TAKEN_TOKENS = 64
"""Fewer tokens are read faster than saved ones are found."""
WORTH_SAVING_S = 1.0
"""A conversation that is read in less time is not saved: a few words would take half a megabyte."""
_WEIGHING_STEP = 32
"""Number of new tokens after which the worth of a state is asked again."""
NEW_PREFIX_FLUSH_S = 5.0
_FLUSH_STEP_S = 0.1
_MOST_FLUSHES = 600
"""Limit on the steps in which a document is saved; a request comes first between two steps."""


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
    """Restores the saved part of a prompt into an empty session; the result has ``tokens`` and
    ``seconds``."""
    restorable: Callable[[Any, Path, Sequence[int]], int]
    """Returns the number of tokens of a prompt that a directory can restore."""
    names: Callable[[Any, Path, Sequence[int]], list[str]]
    """Returns the names of the files that contain only tokens of a prompt."""
    tokens_after: Callable[[Any, Path, Sequence[int]], Iterator[list[int]]]
    """Returns sequences of tokens that once followed a prompt, up to the end of the reply."""
    writer: Callable[[Any, Path, Callable[[str], object]], StateWriter]
    """Starts saving a session's state in a directory; reports the names of its segments."""
    may_read_prefix: Callable[[], bool] = bool
    """Returns whether the engine may work before anything is requested."""
    least_tokens: int = LEAST_TAKEN_TOKENS
    """Number of tokens from which the state of a conversation is saved."""
    least_read_s: float = WORTH_SAVING_S
    """Time to read a conversation from which its state is saved."""


@record
class RestoreOutcome:
    """Result of restoring a state.

    Attributes:
        trouble: reason why the state was not used; empty if there is none.
    """

    tokens: int = 0
    seconds: float = 0.0
    trouble: str = ""


class SavedStates:
    """Saved states of one session.

    Args:
        location: place of the live conversation's states.
        files: functions that read and write states; None saves nothing.
        has_other_work: returns whether other work waits.
        saves_names: whether the names of segments are saved with the conversation.
        seconds_to_read: returns the time in which a number of tokens is read; None if unknown.
    """

    def __init__(
        self,
        location: StateLocation,
        files: StateFiles | None,
        model: Any,
        session: Session,
        has_other_work: Callable[[], bool] = lambda: False,
        saves_names: bool = True,
        seconds_to_read: Callable[[int], float | None] = lambda n_tokens: None,
    ) -> None:
        self._location = location
        self._files = files
        self._model = model
        self._session = session
        self._has_other_work = has_other_work
        self._saves_names = saves_names
        self._writer: StateWriter | None = None
        self._path: Path | None = None
        """Path of the conversation whose state is saved."""
        self._seconds_to_read = seconds_to_read
        self._next_weighing = 0
        """Number of tokens from which to ask again whether the state is worth its disk."""

    # ---- saving

    def close(self, patience_s: float = FLUSH_S) -> None:
        """Save the state before the session is closed, in at most ``patience_s`` seconds."""
        if self._writer is None:
            self.update()  # A first reply may have ended before the path was known.
        self.leave(patience_s)

    def leave(self, patience_s: float = FLUSH_S) -> None:
        """Save the state before another conversation comes, in at most ``patience_s`` seconds."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.flush(patience_s)
        self._drop_writer()

    def update(self) -> None:
        """Let the writer save new tokens; cheap enough for every token."""
        if self._files is None:
            return
        try:
            self._follow(self._files, self._location.state_path)
            if self._writer is not None:
                self._writer.notify()
                self._location.state_trouble = self._writer.problem or ""
        except Exception as error:  # A cache is not worth a reply.
            self._writer = None
            self._next_weighing = sys.maxsize
            self._location.state_trouble = reason_in_a_line(error)

    def _follow(self, files: StateFiles, path: Path | None) -> None:
        """Save the state of the conversation with this path once it is worth its disk."""
        if self._path != path:
            self._drop_writer()
            self._path = path
        n_tokens = self._session.length
        is_short = n_tokens < max(files.least_tokens, self._next_weighing)
        if path is None or self._writer is not None or is_short:
            return
        read_s = self._seconds_to_read(n_tokens)
        if read_s is not None and read_s < files.least_read_s:
            self._next_weighing = n_tokens + _WEIGHING_STEP
            return
        on_segment: Callable[[str], object] = str
        if self._saves_names:
            on_segment = SegmentRecorder(path, self._kind).note
        self._writer = files.writer(self._session, self._directory_to_write(), on_segment)

    def _drop_writer(self) -> None:
        writer = self._writer
        self._writer = None
        self._path = None
        self._next_weighing = 0
        if writer is not None:
            with suppress(Exception):
                writer.close()

    # ---- restoring

    def reusable(self, ids: Sequence[int]) -> int:
        """Return the number of tokens of a prompt that the cache or the disk has."""
        n_cached = self._session.reusable(ids)
        n_saved = self._find_saved(ids, n_cached + LEAST_TAKEN_TOKENS)[1]
        return max(n_cached, min(n_saved, len(ids) - 1))

    def restore(self, ids: Sequence[int], path: Path | None = None) -> RestoreOutcome:
        """Restore the saved part of a prompt, if it is more than the cache has.

        The state may be that of another conversation with the same beginning. It may also be this
        conversation's own, if sliding or recurrent layers cannot go back to where an edit or
        another reply begins.

        Args:
            path: beginning of the paths of the conversation's states if it is resumed; None if it
                is not.
        """
        session = self._session
        files = self._files
        if files is None:
            return RestoreOutcome()
        least = session.reusable(ids) + LEAST_TAKEN_TOKENS
        if path is not None:
            least = session.reusable(ids) + 1
        directory, _, trouble = self._find_saved(ids, least)
        if directory is None:
            return RestoreOutcome(trouble=trouble)
        self.leave()
        session.truncate(0)
        try:
            restored = files.restore(session, directory, ids)
        except Exception as error:
            return RestoreOutcome(trouble=_not_used(error))
        return RestoreOutcome(restored.tokens, restored.seconds)

    def _find_saved(self, ids: Sequence[int], least: int) -> tuple[Path | None, int, str]:
        """Return the directory of a saved prompt, the number of its tokens there, and an error.

        The directory is None if fewer than ``least`` tokens are saved.
        """
        files = self._files
        if files is None or len(ids) < least:
            return None, 0, ""
        n_tokens = 0
        try:
            directory = self._directory()
            if directory is not None:
                n_tokens = files.restorable(self._session, directory, ids)
        except Exception as error:
            return None, 0, _not_used(error)
        if n_tokens < least:
            return None, 0, ""
        return directory, n_tokens, ""

    def tokens_after(self, ids: Sequence[int]) -> list[list[int]]:
        """Return sequences of saved tokens that once followed a prompt, up to the end of the
        reply; empty if there are none."""
        if self._files is None:
            return []
        try:
            directory = self._directory()
            if directory is None:
                return []
            return list(self._files.tokens_after(self._session, directory, ids))
        except Exception as error:
            if exit_code_of(error) is None:
                log_without_text(error)
            return []

    def begin_with(self, ids: Sequence[int]) -> None:
        """Restore the first tokens of a conversation, or read and save them while idle."""
        files = self._files
        session = self._session
        if files is None or len(ids) < LEAST_PREFIX_TOKENS:
            return
        self._drop_writer()
        if session.reusable([*ids, -1]) == len(ids):
            return
        try:
            directory = self._directory_to_write()
            if files.restorable(session, directory, ids) > session.reusable(ids):
                session.truncate(0)
                files.restore(session, directory, ids)
            if session.reusable([*ids, -1]) < len(ids) and files.may_read_prefix():
                self._read_and_save(files, session, ids)
        except Exception as error:
            if exit_code_of(error) is None:
                log_without_text(error)

    def _read_and_save(self, files: StateFiles, session: Session, ids: Sequence[int]) -> None:
        def check_other_work(*_: int) -> None:
            if self._has_other_work():
                session.cancel()

        if self._has_other_work():
            return
        session.prefill(ids, on_progress=check_other_work)
        with closing(files.writer(session, self._directory_to_write(), str)) as writer:
            writer.notify()
            writer.flush(NEW_PREFIX_FLUSH_S)

    # ---- documents

    def n_saved(self, ids: Sequence[int]) -> int:
        """Return the number of tokens of a prompt that are saved."""
        return self._find_saved(ids, 1)[1]

    def files_of(self, ids: Sequence[int]) -> tuple[Path, ...]:
        """Return the files that contain only tokens of a prompt."""
        if self._files is None:
            return ()
        directory = self._directory()
        if directory is None:
            return ()
        names = self._files.names(self._session, directory, ids)
        return tuple(directory / name for name in names)

    def read_apart(
        self, ids: Sequence[int], path: Path, idle_work: IdleWork, on_saved: Callable[[int], object]
    ) -> str:
        """Prefill a prompt in a session of its own and save it; the present session stays as it is.

        Args:
            path: beginning of the paths of the states of the conversation that has the prompt.
            on_saved: called with the number of tokens that are saved.

        Returns:
            The reason why it cannot continue; empty if it is done or was dropped.
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
            directory = self._directory_to_write()
            on_segment = SegmentRecorder(path, self._kind).note
            with closing(self._model.session(present.n_ctx, present.kv_type)) as session:
                files.restore(session, directory, ids)
                with closing(files.writer(session, directory, on_segment)) as writer:
                    idle_work.prefill(session, ids, save)
                    for _ in range(_MOST_FLUSHES):
                        if idle_work.is_dropped or writer.problem or writer.flush(_FLUSH_STEP_S):
                            break
                    return writer.problem or ""
        except Exception as error:
            return reason_in_a_line(error)

    # ---- directories

    @property
    def _kind(self) -> str:
        """Name of the model and KV type; states of another kind cannot be restored."""
        return f"{self._model.fingerprint[:16]}-{self._session.kv_type.replace('/', '-')}"

    def _directory(self) -> Path | None:
        """Return the directory of this model and KV type; None if it cannot be created."""
        root = paths.private_directory(paths.states_dir())
        if root is None:
            return None
        return paths.private_directory(root / self._kind)

    def _directory_to_write(self) -> Path:
        """Return the directory, with the model's name next to the segments.

        Raises OSError: it cannot be created.
        """
        directory = self._directory()
        if directory is None:
            raise PermissionError(errno.EACCES, "the directory for saved states is not writable")
        save_model_name(directory, str(self._model.name))
        return directory


def _not_used(error: Exception) -> str:
    return f"the saved state is not used: {reason_in_a_line(error)}"


def reason_in_a_line(error: Exception) -> str:
    """Return the reason of an error; a bug goes to the log and is named by its type."""
    if isinstance(error, OSError) and error.strerror:
        return clean_line(error.strerror, 120)
    if exit_code_of(error) is not None:
        return clean_line(str(error), 200)
    log_without_text(error)
    return f"internal error: {type(error).__name__}"
