"""Reads a TOML file that a person wrote: bounded, and with errors of one line that name it."""

from pathlib import Path
from typing import Any

from app.program import exit_codes
from app.program.refusals import Refusal

_MAX_FILE_BYTES = 1 << 20


def read_toml(path: Path, kind: str, error: type[Refusal] = Refusal) -> dict[str, Any]:
    """Return the file's tables.

    Args:
        path: the file.
        kind: what it is to the user: "settings file".
        error: what to raise.

    Raises:
        Refusal: it cannot be read, is too large, not UTF-8 or not sound TOML.
    """
    import tomli

    try:
        if not path.is_file():
            raise error(f"{path}: is no file (remove it or name another one)", exit_codes.UNREADABLE)
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as reason:
        raise error(f"{path}: {reason.strerror} (the {kind})", exit_codes.UNREADABLE) from reason
    if len(raw) > _MAX_FILE_BYTES:
        raise error(f"{path}: is larger than 1 MiB, which no {kind} is", exit_codes.BAD_DATA)
    try:
        return tomli.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as reason:
        raise error(f"{path}: byte {reason.start} is not UTF-8", exit_codes.BAD_DATA) from reason
    except (tomli.TOMLDecodeError, RecursionError, ValueError) as reason:
        raise error(f"{path}: is not sound TOML: {reason}", exit_codes.BAD_DATA) from reason
