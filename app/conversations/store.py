"""The directory of conversations: which there are, opening, beginning, renaming and deleting one.

Each has a directory of its own, named by a number that grows: ``transcript.log`` is the conversation, everything else
in it can be made again. Directories are the user's alone and never reached through a symbolic link.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from app.conversations.keeper import cause_of
from app.conversations.log_file import HOLDER_NAME, Held, LogFile, LogRefusedError, ReadLog, let_go, lock, read_only
from app.conversations.records import write_record
from app.conversations.replay import MOST_TITLE_CHARS, Saved, head_record
from app.conversations.segment_notes import SUFFIX, noted_in
from app.conversations.summary import SUMMARY_NAME, Summary, read_summary, remembered_title, summary_of, write_summary
from app.program import paths
from app.program.remote_model import ModelPlace, is_remote
from app.program.small_file import JsonFile, safe_flags
from app.text.clean_text import clean_line
from app.text.record import record

LOG_NAME = "transcript.log"
STATE_NAME = "kv.state"
LOCK_NAME = "names.lock"
RECENT_NAME, _RECENT_VERSION, _MOST_RECENT_BYTES = "recent.json", 1, 1 << 20
_MOST_MODELS = 200
_LARGEST_ORDER = 1 << 53
_MOST_TRIES = 5
_SWEPT_AFTER_S = 3600.0
_LOCK_PATIENCE_S = 20.0
_LOCK_PERIOD_S = 0.02
_ID = re.compile(r"[0-9]{6,12}")
_MOST_CONVERSATIONS = 100_000
_DISPOSABLE = {HOLDER_NAME, SUMMARY_NAME}
_LARGEST_NUMBER = 10**9
"""No store counts so far: where a directory has a larger number, the next conversation does not follow it."""


@record
class Entry:
    """One conversation of the list."""

    id: str
    summary: Summary
    log_bytes: int = 0
    state_bytes: int = 0
    """Sizes of the conversation and of the saved states of its cache, shared ones included."""
    trouble: str = ""
    """Why it cannot be opened; "" if it can."""
    snippet: str = ""
    """Words that were searched, in their place in the text, clean and of one line; "" where the title has them."""

    @property
    def last_use(self) -> tuple[int, str]:
        """Sort key: later use is larger."""
        return self.summary.order, self.id


@record
class Opened:
    """A conversation that was opened."""

    id: str
    saved: Saved
    log: LogFile | None
    """Open and locked; None for one that can only be copied."""
    notice: str = ""
    """A line about what was found; "" for nothing."""
    obstacle: str = ""
    """Why it can only be copied; "" if it has a log."""


class Store:
    """All conversations below one directory, by default in the platform's place; ``root`` None: there is none."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or paths.conversations_dir()
        self._states = paths.states_dir()
        file = self.root / RECENT_NAME if self.root is not None else None
        self._recent = JsonFile(file, _RECENT_VERSION, _MOST_RECENT_BYTES)
        """The conversation used last with each model, so that a start need not read all; losing it costs a look."""

    # ---- finding

    def ids(self) -> list[str]:
        """Return the ids of all conversations, oldest first."""
        try:
            names = os.listdir(self.root) if self.root is not None else []
        except OSError:
            return []
        return sorted((name for name in names if _ID.fullmatch(name)), key=int)

    def entries(self) -> Iterator[Entry]:
        """Return every conversation, the newest id first; reads no log whose summary holds."""
        return filter(None, map(self.entry, reversed(self.ids())))

    def entry(self, conversation_id: str) -> Entry | None:
        """Return one row; None where there is no conversation."""
        try:
            directory = self._directory(conversation_id)
            found = os.lstat(directory / LOG_NAME)
        except (OSError, LogRefusedError):
            return None
        known = read_summary(directory, found.st_size)
        summary, trouble = (known, "") if known is not None else self._summarize(directory, found.st_size)
        return Entry(conversation_id, summary, found.st_size, self.state_bytes([conversation_id]), trouble)

    def newest(self, model_path: str) -> str | None:
        """Return the conversation of a model that was used last, as the list says; None if none exists."""
        fitting = [
            entry
            for entry in self.entries()
            if not entry.trouble and entry.summary.n_messages and entry.summary.model_path == model_path
        ]
        return max(fitting, key=lambda entry: entry.last_use).id if fitting else None

    def note_use(self, conversation_id: str, model_path: str) -> int:
        """Count one more use, of "" before it is on disk, and return its order: a clock that jumps changes nothing."""
        recent = self._read_recent()
        before, last = recent or (max((entry.summary.order for entry in self.entries()), default=0) + 1, {})
        others = [(path, one) for path, one in last.items() if path != model_path]
        newest = [(model_path, conversation_id)] if conversation_id else []
        self._recent.write(order=before + 1, last=dict([*others, *newest][-_MOST_MODELS:]))
        return before + 1

    def last_used(self, model_path: str) -> str | None:
        """Return the conversation that was used last with a model; None if none exists."""
        _, last = self._read_recent() or (0, {})
        entry = self.entry(last[model_path]) if last.get(model_path) else None
        if entry is not None and not entry.trouble and entry.summary.n_messages:
            return entry.id
        return self.newest(model_path)

    def _read_recent(self) -> tuple[int, dict[str, str]] | None:
        """Return the order of the last use, and the last conversation by model; None where nobody can say."""
        values = self._recent.read()
        order, last = values.get("order"), values.get("last")
        if type(order) is not int or not 0 <= order <= _LARGEST_ORDER or not isinstance(last, dict):
            return None
        return (order, last) if all(isinstance(one, str) for one in last.values()) else None

    def find(self, name: str) -> str | None:
        """Return the conversation with this title, also one that is unreadable now; failing that, with this number."""
        name = " ".join(name.split())  # as titles are kept
        wanted = clean_line(name, MOST_TITLE_CHARS).casefold()
        named = [entry for entry in self.entries() if entry.summary.title.casefold() == wanted]
        if named:
            return max(named, key=lambda entry: entry.last_use).id
        lost = [one for one, title in self.unreadable() if title.casefold() == wanted]
        if lost:
            return lost[-1]
        number = f"{int(name):06d}" if name.isdecimal() and len(name) <= 12 else ""
        return number if number in self.ids() else None

    def unreadable(self) -> Iterator[tuple[str, str]]:
        """Yield conversations that cannot be read, or were emptied, with the titles they had; "" where unknown."""
        for conversation_id in self.ids():
            path = self._path(conversation_id)
            entry = self.entry(conversation_id)
            is_there = os.path.lexists(path / LOG_NAME) or not path.is_dir() or path.is_symlink()
            title = remembered_title(path)
            if is_there and (entry is None or entry.trouble or (title and not entry.log_bytes)):
                yield conversation_id, title

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other programs out, where files can be locked. Raises LogRefusedError: one is here for too long."""
        handle = self._open_lock()
        try:
            give_up_s = time.monotonic() + _LOCK_PATIENCE_S
            while handle is not None and lock(handle) is Held.ELSEWHERE:
                if time.monotonic() > give_up_s:
                    raise LogRefusedError("another jalopy keeps the saved conversations busy")
                time.sleep(_LOCK_PERIOD_S)
            yield
        finally:
            if handle is not None:
                let_go(handle)

    def _open_lock(self) -> int | None:
        """Open the file whose lock is meant; None where nothing can be written either."""
        try:
            root = paths.private_directory(self.root)
            return os.open(root / LOCK_NAME, safe_flags(os.O_RDWR | os.O_CREAT), 0o600) if root is not None else None
        except OSError:
            return None

    # ---- one of them

    def state_files(self, conversation_id: str) -> list[Path]:
        """Return the files about a conversation's states: notes of its segments, and what earlier versions kept."""
        directory = self._path(conversation_id)
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            return []
        return [directory / name for name in names if name.lstrip(".").startswith(STATE_NAME)]

    def states_of_kind(self, kind: str) -> list[Path]:
        """Return where the states are that conversations had with one model and type of cache; not all have one."""
        return [self._path(one) / f"{STATE_NAME}.{kind}" for one in self.ids()]

    def read(self, conversation_id: str) -> Saved:
        """Read a conversation, changing nothing. Raises LogRefusedError: it cannot be used; OSError: nor be read."""
        return read_only(self._directory(conversation_id) / LOG_NAME).saved

    def open(self, conversation_id: str) -> Opened:
        """Open a conversation; one in use, or beyond mending, comes as a copy. Raises LogRefusedError, OSError."""
        path = self._directory(conversation_id) / LOG_NAME
        try:
            log = LogFile.open(path)
        except (LogRefusedError, OSError) as error:
            found = read_only(path)  # what is not even readable raises here
            obstacle = cause_of(error)
            notice = "; ".join(filter(None, (f"{obstacle}: you go on with a copy", found.damage)))
            return Opened(conversation_id, found.saved, None, notice, obstacle)
        try:
            found, notice = log.load()
        except LogRefusedError:
            log.close()
            raise
        except OSError as error:
            log.close()
            saved = read_only(path).saved
            obstacle = f"damaged, not mended ({cause_of(error)})"
            return Opened(conversation_id, saved, None, f"{obstacle}: this is a copy", obstacle)
        if found.n_damaged_lines and not found.saved.title:
            _bring_title_back(log, found)
        return Opened(conversation_id, found.saved, log, notice)

    def create(self) -> LogFile:
        """Begin a conversation: a new directory with an empty log. Raises OSError: that failed; nothing is left."""
        if self.root is None or paths.private_directory(self.root) is None:
            raise PermissionError(errno.EACCES, "the state directory is not writable", str(self.root))
        number = max((n for n in map(int, self.ids()) if n <= _LARGEST_NUMBER), default=0)
        for _ in range(_MOST_CONVERSATIONS):
            number += 1
            directory = self.root / f"{number:06d}"
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:
                continue
            try:
                return LogFile.create(directory / LOG_NAME)
            except BaseException:
                with suppress(OSError):
                    (directory / LOG_NAME).unlink(missing_ok=True)
                    directory.rmdir()
                raise
        raise FileExistsError(errno.EEXIST, "there are too many conversations")

    def rename(self, conversation_id: str, title: str) -> None:
        """Give one that is not open another title. Raises LogRefusedError: it is in use, or unusable; OSError."""
        with closing(LogFile.open(self._directory(conversation_id) / LOG_NAME)) as log:
            found, _ = log.load()
            head = [] if found.saved.has_head else [head_record(None, now_text())]
            records = [*head, {"k": "title", "text": clean_line(title, MOST_TITLE_CHARS)}]
            log.append([write_record(one) for one in records])
            log.sync()
            write_summary(log.path.parent, summary_of(log.load()[0].saved), log.size)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation and all that belongs to it. Raises LogRefusedError: in use, or another's; OSError."""
        directory = self._directory(conversation_id)
        with closing(LogFile.open(directory / LOG_NAME)) as log:
            self._drop_segments(conversation_id)
            if os.name == "nt":  # what is open cannot be deleted there
                log.close()
            _empty(directory, but=LOG_NAME)  # the log goes last: a conversation that is half deleted is still listed
            for _ in range(_MOST_TRIES - 1):
                with suppress(OSError):  # the state of its cache may still be written, a moment longer
                    shutil.rmtree(directory)
                    return
            shutil.rmtree(directory)

    def sweep(self, now_s: float) -> None:
        """Delete what a deletion left: directories without a log or anything of the user's, not of the last hour."""
        for conversation_id in self.ids():
            with suppress(LogRefusedError, OSError):
                directory = self._directory(conversation_id)
                is_old = now_s - directory.stat().st_mtime > _SWEPT_AFTER_S
                names = os.listdir(directory)
                if is_old and all(name in _DISPOSABLE or name.lstrip(".").startswith(STATE_NAME) for name in names):
                    for name in names:
                        (directory / name).unlink()
                    directory.rmdir()

    def segments(self, conversation_id: str) -> set[Path]:
        """Return where the segments of a conversation's states are; some may not exist."""
        found: set[Path] = set()
        for file in self.state_files(conversation_id):
            kind = file.name[len(STATE_NAME) + 1 : -len(SUFFIX)]
            if self._states is not None and file.name.endswith(SUFFIX) and kind.strip("."):
                found |= {self._states / kind / name for name in noted_in(file)}
        return found

    def _drop_segments(self, conversation_id: str) -> None:
        """Delete the segments that no other conversation has."""
        own = self.segments(conversation_id)
        for other in self.ids() if own else []:
            if other != conversation_id:
                own -= self.segments(other)
        for path in own:
            with suppress(OSError):
                path.unlink()

    def state_bytes(self, ids: Iterable[str]) -> int:
        """Return what the saved states of some conversations take, what they share counted once."""
        files: set[Path] = set()
        for one in ids:
            files |= {file for file in self.state_files(one) if not file.name.endswith(SUFFIX)} | self.segments(one)
        return sum(map(size_of, files))

    def _path(self, conversation_id: str) -> Path:
        if self.root is None or not _ID.fullmatch(conversation_id):
            raise LogRefusedError("there is no such conversation")
        return self.root / conversation_id

    def _directory(self, conversation_id: str) -> Path:
        directory = self._path(conversation_id)
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
            raise LogRefusedError("not a directory of yours")
        return directory

    def _summarize(self, directory: Path, log_bytes: int) -> tuple[Summary, str]:
        """Read the whole log, once."""
        try:
            found = read_only(directory / LOG_NAME)
        except (LogRefusedError, OSError) as error:
            return Summary(title=f"({cause_of(error)})"), cause_of(error)
        if found.n_damaged_lines:
            found.saved.title = found.saved.title or remembered_title(directory)
        summary = summary_of(found.saved)
        if log_bytes:  # the title that an emptied one had is not known otherwise
            write_summary(directory, summary, log_bytes)
        return summary, ""


def model_key(path: ModelPlace | str) -> str:
    """Return how a model's file is named here; all models of a server are one."""
    return str(path).partition("#")[0] if is_remote(path) else os.path.realpath(str(path))


def now_text() -> str:
    """Return the wall time, for display only."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _bring_title_back(log: LogFile, found: ReadLog) -> None:
    """A damaged line may have been the title: write the one down that was known."""
    title = remembered_title(log.path.parent)
    if title not in ("", found.saved.shown_title):
        found.saved.title = title
        with suppress(LogRefusedError, OSError):
            log.append([write_record({"k": "title", "text": found.saved.title})])


def _empty(directory: Path, but: str) -> None:
    with os.scandir(directory) as found:
        for one in list(found):
            if one.is_dir(follow_symlinks=False):
                shutil.rmtree(one.path)
            elif one.name != but:
                os.unlink(one.path)


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0 if it does not exist."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0
