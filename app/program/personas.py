"""System prompts from files: one ``.md`` or ``.txt`` file for each persona, in a directory of the user's.

A persona is asked for by its name and only found among the files that are there, so no name leads anywhere else.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text

SUFFIXES = (".md", ".txt")
MAX_BYTES = 64 << 10
"""A larger one would fill the context of most models."""
_MAX_FILES = 200


def persona_names(directory: Path | None = None) -> list[str]:
    """Return the names of all personas, sorted; none where there is no directory."""
    return sorted(_files(directory))


def load_persona(name: str, directory: Path | None = None) -> str:
    """Return the system prompt of a persona.

    Raises:
        Refusal: the name is unknown, or its file cannot be used.
    """
    files = _files(directory)
    if name not in files:
        near = difflib.get_close_matches(name, files, n=1, cutoff=0.0)
        hint = f"nearest: {near[0]}" if near else how_to_add(directory)
        raise Refusal(f"unknown persona {clean_line(name, 60)!r} ({hint})", exit_codes.USAGE)
    return read_system_file(files[name])


def how_to_add(directory: Path | None = None) -> str:
    """Return what to do to have a persona."""
    place = directory or paths.personas_dir()
    return f"put NAME.md or NAME.txt into {place}" if place else "there is no home directory to keep them in"


def read_system_file(path: Path) -> str:
    """Return the cleaned text of a file that holds a system prompt.

    Raises:
        Refusal: it cannot be read, is empty, too large or no text.
    """
    shown = clean_line(str(path), 200)
    try:
        # Neither a pipe nor a device may hold up the start.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            if not path.is_file():
                raise Refusal(f"{shown}: is not a file (name a text file)", exit_codes.UNREADABLE)
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Refusal(f"{shown}: {error.strerror} (a system prompt)", exit_codes.UNREADABLE) from error
    if len(raw) > MAX_BYTES:
        raise Refusal(
            f"{shown}: is larger than {MAX_BYTES >> 10} KiB, too much for a system prompt", exit_codes.BAD_DATA
        )
    try:
        text = clean_text(raw.decode("utf-8")).strip()
    except UnicodeDecodeError as error:
        raise Refusal(f"{shown}: byte {error.start} is not UTF-8 (save it as UTF-8)", exit_codes.BAD_DATA) from error
    if not text:
        raise Refusal(f"{shown}: is empty (write a system prompt into it)", exit_codes.BAD_DATA)
    return text


def _files(directory: Path | None) -> dict[str, Path]:
    """Return the personas' files by name; names that would have to be cleaned to be shown are left out."""
    directory = directory or paths.personas_dir()
    if directory is None:
        return {}
    try:
        with os.scandir(directory) as entries:
            found = [Path(entry.path) for _, entry in zip(range(_MAX_FILES), entries, strict=False)]
    except OSError:
        return {}
    return {
        path.stem: path
        for path in sorted(found)
        if path.suffix.lower() in SUFFIXES and path.stem and clean_line(path.stem, 60) == path.stem
    }
