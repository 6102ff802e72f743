"""Every directory and file of the program, by the platform's rules (XDG on Linux), and how its own
modules are run.

No function here raises because a home directory is missing or not writable: the answer is then
None, and the caller goes on without keeping anything.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from engine.machine.directories import make_private

APP_NAME = "jalopy"
LOG_NAME = "jalopy.log"
_ROOT = Path(__file__).resolve().parents[2]


def expanded(given: str) -> Path:
    """Return a path with its ``~`` replaced, or as it is where no one knows that home."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        return Path(given)


def _place(kind: str, name: str = "") -> Callable[[], Path | None]:
    """Return a function that says where a file or directory of the platform's is, whether it exists
    or not."""

    def place() -> Path | None:
        directory = _platform_directory(kind)
        if directory:
            return directory / name
        return None

    return place


config_file = _place("config", "settings.toml")
keymap_file = _place("config", "keymap.toml")
personas_dir = _place("config", "personas")
themes_dir = _place("config", "themes")
state_dir = _place("state")
"""What the program learns and logs."""
state_file = _place("state", "state.json")
"""What the program learned."""
speeds_file = _place("state", "speeds.json")
history_file = _place("state", "prompt-history.jsonl")
"""What was sent from the prompt."""
unsent_file = _place("state", "unsent.jsonl")
"""What was not sent yet when the program ended unexpectedly."""
conversations_dir = _place("state", "conversations")
headers_file = _place("cache", "models.json")
states_dir = _place("cache", "states")
"""The KV cache's saved states, one directory below it for each model and type of cache."""
vectors_file = _place("cache", "passage-vectors.db")
guesses_dir = _place("cache", "guesses")
"""Tokens of conversations, one directory below it for each vocabulary."""
data_dir = _place("data")
"""What the user gets with the program, such as models."""


def bundled(package: str) -> Path:
    """Return the directory of a data package (``config``, ``themes``); the same in a checkout and
    in a wheel."""
    return _ROOT / package


def private_directory(path: Path | None) -> Path | None:
    """Create a directory that no one else can enter, or check an existing one; None where it cannot
    be had.

    One that is the user's is closed to others; where a link leads to it, it is somebody's other
    directory, and its mode stays as it is. Directories above it that are missing are created
    closed; existing ones are left alone.
    """
    if path is None:
        return None
    try:
        make_private(path)
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode) or (
            hasattr(os, "geteuid") and found.st_uid != os.geteuid()
        ):
            return None
        if stat.S_IMODE(found.st_mode) & 0o077 and not path.is_symlink():
            path.chmod(0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            return None
    except OSError:
        return None
    return path


def _platform_directory(kind: str) -> Path | None:
    # Late import: `jalopy --help` should not pay for it.
    import platformdirs

    try:
        directories = platformdirs.PlatformDirs(APP_NAME, appauthor=False)
        path = Path(getattr(directories, f"user_{kind}_dir"))
    except (OSError, RuntimeError, KeyError):
        return None
    # Without a home directory the answer still begins with "~": a folder of that name must not
    # appear.
    if path.is_absolute():
        return path
    return None


# Under PYTHONSAFEPATH the first place is not the current directory.
_RUN = (
    "import sys; sys.path[: not getattr(sys.flags, 'safe_path', False)] = [{root!r}];"
    " import runpy; runpy.run_module({name!r}, None, '__main__', True)"
)


def own_module(name: str) -> list[str]:
    """Return the command that runs a module of ours.

    With ``-m`` the current directory would come first, and another project's ``app`` there would be
    run.
    """
    return [sys.executable, "-c", _RUN.format(root=str(_ROOT), name=name)]
