"""Every directory and file of the program, by the platform's rules (XDG on Linux).

No function here raises because a home directory is missing or not writable: the answer is then None, and the caller
goes on without keeping anything.
"""

import os
import stat
from pathlib import Path

from engine.machine.directories import make_private

APP_NAME = "jalopy"
LOG_NAME = "jalopy.log"


def expanded(given: str) -> Path:
    """Return a path with its ``~`` replaced, or as it stands where nobody knows that home."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        return Path(given)


def config_file() -> Path | None:
    """Return where the user's settings file would be."""
    return _below(_platform_directory("config"), "settings.toml")


def keymap_file() -> Path | None:
    """Return where the user's own keys would be."""
    return _below(_platform_directory("config"), "keymap.toml")


def personas_dir() -> Path | None:
    """Return the directory of the user's system prompts."""
    return _below(_platform_directory("config"), "personas")


def themes_dir() -> Path | None:
    """Return the directory of the user's own themes."""
    return _below(_platform_directory("config"), "themes")


def history_file() -> Path | None:
    """Return the file of what was sent from the prompt."""
    return _below(state_dir(), "prompt-history.jsonl")


def unsent_file() -> Path | None:
    """Return the file of what was not sent yet when the program ended unexpectedly."""
    return _below(state_dir(), "unsent.jsonl")


def state_dir() -> Path | None:
    """Return the directory for what the program learns and logs."""
    return _platform_directory("state")


def cache_dir() -> Path | None:
    """Return the directory for what can be computed again."""
    return _platform_directory("cache")


def conversations_dir() -> Path | None:
    """Return the directory of the saved conversations."""
    return _below(state_dir(), "conversations")


def states_dir() -> Path | None:
    """Return the directory for the KV cache's saved states, one below it for each model and type of cache."""
    return _below(cache_dir(), "states")


def prefixes_dir() -> Path | None:
    """Return the directory in which earlier versions kept the KV cache's state of system prompts."""
    return _below(cache_dir(), "prefixes")


def data_dir() -> Path | None:
    """Return the directory for what the user gets with the program, such as models."""
    return _platform_directory("data")


def state_file() -> Path | None:
    """Return the file of what the program learned."""
    return _below(state_dir(), "state.json")


def speeds_file() -> Path | None:
    """Return the file of measured speeds."""
    return _below(state_dir(), "speeds.json")


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


def _below(directory: Path | None, name: str) -> Path | None:
    return directory / name if directory else None


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
