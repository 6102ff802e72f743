"""Every directory and file of the program, by the platform's rules (XDG on Linux).

No function here raises because a home directory is missing or not writable: the answer is then None, and the caller
goes on without keeping anything.
"""

import os
import stat
from pathlib import Path

from engine.machine.directories import make_private

APP_NAME = "jalopy"
SETTINGS_NAME = "settings.toml"
KEYMAP_NAME = "keymap.toml"
THEMES_NAME = "themes"
PERSONAS_NAME = "personas"
STATE_NAME = "state.json"
HISTORY_NAME = "prompt-history.jsonl"
UNSENT_NAME = "unsent.jsonl"
LOG_NAME = "jalopy.log"
SPEEDS_NAME = "speeds.json"
CONVERSATIONS_NAME = "conversations"
STATES_NAME = "states"
PREFIXES_NAME = "prefixes"


def expanded(given: str) -> Path:
    """Return a path with its ``~`` replaced, or as it stands where nobody knows that home."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        return Path(given)


def config_file() -> Path | None:
    """Return where the user's settings file would be."""
    directory = _platform_directory("config")
    return directory / SETTINGS_NAME if directory else None


def keymap_file() -> Path | None:
    """Return where the user's own keys would be."""
    directory = _platform_directory("config")
    return directory / KEYMAP_NAME if directory else None


def personas_dir() -> Path | None:
    """Return the directory of the user's system prompts."""
    directory = _platform_directory("config")
    return directory / PERSONAS_NAME if directory else None


def themes_dir() -> Path | None:
    """Return the directory of the user's own themes."""
    directory = _platform_directory("config")
    return directory / THEMES_NAME if directory else None


def history_file() -> Path | None:
    """Return the file of what was sent from the prompt."""
    directory = state_dir()
    return directory / HISTORY_NAME if directory else None


def unsent_file() -> Path | None:
    """Return the file of what was not sent yet when the program ended unexpectedly."""
    directory = state_dir()
    return directory / UNSENT_NAME if directory else None


def state_dir() -> Path | None:
    """Return the directory for what the program learns and logs."""
    return _platform_directory("state")


def cache_dir() -> Path | None:
    """Return the directory for what can be computed again."""
    return _platform_directory("cache")


def conversations_dir() -> Path | None:
    """Return the directory of the saved conversations."""
    directory = state_dir()
    return directory / CONVERSATIONS_NAME if directory else None


def states_dir() -> Path | None:
    """Return the directory for the KV cache's saved states, one below it for each model and type of cache."""
    directory = cache_dir()
    return directory / STATES_NAME if directory else None


def prefixes_dir() -> Path | None:
    """Return the directory in which earlier versions kept the KV cache's state of system prompts."""
    directory = cache_dir()
    return directory / PREFIXES_NAME if directory else None


def data_dir() -> Path | None:
    """Return the directory for what the user gets with the program, such as models."""
    return _platform_directory("data")


def state_file() -> Path | None:
    """Return the file of what the program learned."""
    directory = state_dir()
    return directory / STATE_NAME if directory else None


def speeds_file() -> Path | None:
    """Return the file of measured speeds."""
    directory = state_dir()
    return directory / SPEEDS_NAME if directory else None


def log_file() -> Path | None:
    """Return the file that tracebacks go to."""
    directory = state_dir()
    return directory / LOG_NAME if directory else None


def bundled(package: str) -> Path:
    """Return the directory of a data package (``config``, ``themes``); the same in a checkout and in a wheel."""
    return Path(__file__).resolve().parents[2] / package


def private_directory(path: Path | None) -> Path | None:
    """Create a directory that nobody else can enter, or check that an existing one is the user's own.

    One that is the user's is closed to others; where a link leads to it, it is somebody's other directory, and its mode
    stays as it is. Directories above it that are missing are created closed; existing ones are left alone.

    Returns:
        The path, or None where it cannot be had: not writable, no directory, someone else's.
    """
    if path is None:
        return None
    try:
        make_private(path)
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
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
    # Without a home directory the answer still begins with "~": a folder of that name must not appear.
    return path if path.is_absolute() else None
