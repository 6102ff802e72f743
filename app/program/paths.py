"""Every file and directory of the program, by the platform's rules (XDG on Linux).

``STORED_FILES`` lists them all; ``jalopy help files`` shows it. No function raises because a home
directory is missing or not writable: it returns None then, and nothing is saved.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from engine.machine.files import make_private

APP_NAME = "jalopy"
LOG_NAME = "jalopy.log"
_ROOT = Path(__file__).resolve().parents[2]


class StoredFile(NamedTuple):
    """A file or directory that the program reads or writes."""

    base: str
    """Base directory: "config", "state", "data" or "cache"."""
    name: str
    """Path below the base directory; a directory ends with "/"."""
    purpose: str
    """Content, in a few words for the manual."""


def expanded(path_text: str) -> Path:
    """Return a path with its ``~`` replaced, or unchanged if that home is not known."""
    try:
        return Path(path_text).expanduser()
    except RuntimeError:
        return Path(path_text)


def _function_for(base: str, name: str = "") -> Callable[[], Path | None]:
    """Return a function that returns a path of the platform, whether it exists or not."""

    def path() -> Path | None:
        directory = base_directory(base)
        if directory:
            return directory / name
        return None

    return path


config_file = _function_for("config", "settings.toml")
keymap_file = _function_for("config", "keymap.toml")
personas_dir = _function_for("config", "personas")
prompts_dir = _function_for("config", "prompts")
themes_dir = _function_for("config", "themes")
state_dir = _function_for("state")
state_file = _function_for("state", "state.json")
speeds_file = _function_for("state", "speeds.json")
tunings_file = _function_for("state", "tunings.json")
history_file = _function_for("state", "prompt-history.jsonl")
unsent_file = _function_for("state", "unsent.jsonl")
conversations_dir = _function_for("state", "conversations")
pictures_dir = _function_for("state", "pictures")
headers_file = _function_for("cache", "models.json")
states_dir = _function_for("cache", "states")
vectors_file = _function_for("cache", "passage-vectors.db")
guesses_dir = _function_for("cache", "guesses")
data_dir = _function_for("data")

STORED_FILES = (
    StoredFile("config", "settings.toml", "your settings"),
    StoredFile("config", "keymap.toml", "your keys"),
    StoredFile("config", "personas/", "your personas, one file each"),
    StoredFile("config", "prompts/", "your prompts, one file each"),
    StoredFile("config", "themes/", "your themes, one file each"),
    StoredFile(
        "state", "conversations/conversations.db", "conversations, documents, unsent drafts"
    ),
    StoredFile("state", "conversations/backup-1.db", "yesterday's copy of the database"),
    StoredFile("state", "conversations/backup-2.db", "the copy before"),
    StoredFile("state", "conversations/damaged-N.db", "a damaged database, after its repair"),
    StoredFile("state", "conversations/mended.txt", "result of a repair, until a chat shows it"),
    StoredFile("state", "conversations/damaged", "marks a database to repair"),
    StoredFile("state", "conversations/in-use.lock", "locks of open conversations"),
    StoredFile("state", "conversations/only-process", "the one process, if files cannot be locked"),
    StoredFile("state", "conversations/off-shelf.json", "of older versions: removed documents"),
    StoredFile(
        "state", "conversations/long-documents.json", "of older versions: paths of documents"
    ),
    StoredFile("state", "pictures/", "pictures of saved conversations"),
    StoredFile("state", "unsent.jsonl", "of older versions: unsent drafts"),
    StoredFile("state", "prompt-history.jsonl", "messages for the Up key"),
    StoredFile(
        "state", "state.json", "last model, theme, tuned threads, what you chose for models"
    ),
    StoredFile("state", "speeds.json", "speeds of replies of 90 days on this machine"),
    StoredFile("state", "speeds-damaged.json", "a damaged file of speeds, put aside"),
    StoredFile("state", "tunings.json", "the last measurement of F4 for each model"),
    StoredFile("state", "copied.txt", "text of /copy file"),
    StoredFile("state", LOG_NAME, "internal errors, without text of conversations"),
    StoredFile("data", "models/", "downloaded models"),
    StoredFile("cache", "states/", "saved KV caches (jalopy states)"),
    StoredFile("cache", "guesses/", "tokens of conversations, for guess_ahead"),
    StoredFile("cache", "passage-vectors.db", "vectors of long documents, for search_by_meaning"),
    StoredFile("cache", "models.json", "headers of models, for lists"),
    StoredFile("cache", "kernels-VERSION/", "compiled kernels for this processor"),
)
"""All files and directories, in the order of the manual."""

_BASE_TITLES = {
    "config": "Your files",
    "state": "What Jalopy saves",
    "data": "Models",
    "cache": "Cache: may be deleted at any time",
}


def file_table() -> str:
    """Return the list of all files as text for the manual."""
    width = max(len(file.name) for file in STORED_FILES)
    blocks = []
    for base, title in _BASE_TITLES.items():
        directory = base_directory(base) or "no directory on this machine"
        files = [file for file in STORED_FILES if file.base == base]
        lines = [f"  {file.name:<{width}}  {file.purpose}" for file in files]
        blocks.append("\n".join([f"## {title}", "", str(directory), "", *lines]))
    return "\n\n".join(blocks)


def bundled(package: str) -> Path:
    """Return the directory of a data package (``config``, ``themes``), in a checkout or a wheel."""
    return _ROOT / package


def private_directory(path: Path | None) -> Path | None:
    """Create a private directory or check an existing one; return None if it cannot be used.

    An existing directory of the user is closed to others, unless it is a link to a directory with
    another purpose. Missing parents are created private; existing ones are left alone.
    """
    if path is None:
        return None
    try:
        make_private(path)
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode) or (
            hasattr(os, "geteuid") and status.st_uid != os.geteuid()
        ):
            return None
        if stat.S_IMODE(status.st_mode) & 0o077 and not path.is_symlink():
            path.chmod(0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            return None
    except OSError:
        return None
    return path


def memory_directory() -> Path | None:
    """Return the program's directory in memory, which the system empties at logout; None if the
    session has none.
    """
    path = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if path.is_absolute() and path.is_dir():
        return path / APP_NAME
    return None


def base_directory(base: str) -> Path | None:
    """Return the program's directory for "config", "state", "data" or "cache"; None if there is
    none."""
    # a late import: `jalopy --help` does without it
    import platformdirs

    try:
        directories = platformdirs.PlatformDirs(APP_NAME, appauthor=False)
        path = Path(getattr(directories, f"user_{base}_dir"))
    except (OSError, RuntimeError, KeyError):
        return None
    # Without a home directory the path begins with "~"; a folder of that name must not appear.
    if path.is_absolute():
        return path
    return None


# Under PYTHONSAFEPATH the first entry of sys.path is not the current directory.
_RUN = (
    "import sys; sys.path[: not getattr(sys.flags, 'safe_path', False)] = [{root!r}];"
    " import runpy; runpy.run_module({name!r}, None, '__main__', True)"
)


def own_module(name: str) -> list[str]:
    """Return the command that runs a module of this program.

    ``-m`` would search the current directory first, and run the ``app`` of another project there.
    """
    return [sys.executable, "-c", _RUN.format(root=str(_ROOT), name=name)]
