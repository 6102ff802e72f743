"""System prompts from files: one ``.md`` or ``.txt`` file for each persona, in a directory of the
user's.

A persona is asked for by its name and only found among the files that are there, so no name leads
anywhere else. Between two lines ``---`` at its beginning a file may set parameters of generation,
``temperature: 0.3``: a preset.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from app.program import exit_codes, notices, paths
from app.program.refusals import Refusal
from app.program.samplers import SAMPLERS
from app.program.settings import as_number
from app.program.small_file import read_text
from app.text.clean_text import clean_line, clean_text
from app.text.record import record

SUFFIXES = (".md", ".txt")
MAX_BYTES = 64 << 10
"""A larger one would fill the context of most models."""
_MAX_FILES = 200
_HEAD = re.compile(
    r"---\n((?:[a-z_]+ *: *-?[0-9]{1,19}(?:\.[0-9]{1,18})?(?:e-?[0-9]{1,2})? *\n)+)---(?:\n|$)"
)
"""Lines of another form are words of the system prompt."""


def persona_names() -> list[str]:
    """Return the names of all personas, sorted; none where there is no directory."""
    return sorted(_files())


@record
class Persona:
    """A system prompt, and the parameters of generation that belong to it, by name; perhaps only
    one of both."""

    system: str
    parameters: Mapping[str, float] = field(default_factory=dict)


def load_persona(name: str) -> Persona:
    """Return a persona, its parameters' values unchecked.

    Raises Refusal: an unknown name, a file of no use.
    """
    files = _files()
    if name not in files:
        near = difflib.get_close_matches(name, files, n=1, cutoff=0.5)
        if files:
            listed = clean_line(f"known: {', '.join(files)}", 200)
        else:
            listed = how_to_add()
        if near:
            hint = f"nearest: {near[0]}"
        else:
            hint = listed
        raise Refusal(
            f"there is no persona or preset {clean_line(name, 60)!r} ({hint})", exit_codes.USAGE
        )
    text = read_system_file(files[name])
    head = _HEAD.match(text)
    if head is None:
        return Persona(text)
    lines = (line.partition(":") for line in head[1].splitlines())
    parameters: dict[str, Any] = {key.strip(): as_number(value) for key, _, value in lines}
    known = list(SAMPLERS)
    for key in parameters:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise Refusal(
                f"persona {name}: there is no parameter {clean_line(key, 40)} (nearest: {nearest})"
            )
    return Persona(text[head.end() :].strip(), parameters)


def save_persona(name: str, persona: Persona) -> str:
    """Keep a persona as a file; returns a line.

    Raises Refusal: no name for a file, taken, or unwritten.
    """
    directory = paths.personas_dir()
    if directory is None:
        raise Refusal(how_to_add())
    if not re.fullmatch(r"\w[\w .-]{0,59}", name):
        raise Refusal(
            f"{clean_line(name, 60)!r} cannot be a preset's name "
            "(letters, figures, spaces, . - and _)"
        )
    if not (persona.system or persona.parameters):
        raise Refusal(
            "there is nothing to keep: /set chooses parameters, /system TEXT a system prompt"
        )
    if name in _files():
        raise Refusal(f"there is a persona {name} already, which stays (choose another name)")
    head = "".join(f"{key}: {value!r}\n" for key, value in persona.parameters.items())
    path = directory / f"{name}.md"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write((f"---\n{head}---\n" if head else "") + f"{persona.system}\n")
    except OSError as error:
        raise Refusal(
            f"{clean_line(str(path), 200)}: {error.strerror} (nothing is kept)"
        ) from error
    return f"kept as {path}: /preset {name} begins with it"


def how_to_add() -> str:
    """Return what to do to have a persona."""
    place = paths.personas_dir()
    if place:
        return f"put NAME.md or NAME.txt into {place}"
    return "there is no home directory to keep them in"


def read_system_file(path: Path) -> str:
    """Return the cleaned text of a file with a system prompt.

    Raises Refusal: unread, empty, too large, or no text.
    """
    text = clean_text(read_text(path, "system prompt", MAX_BYTES)).strip()
    if not text:
        raise Refusal(
            f"{clean_line(str(path), 200)}: is empty (write a system prompt into it)",
            exit_codes.BAD_DATA,
        )
    return text


def _files() -> dict[str, Path]:
    """Return the personas' files by name; names that would have to be cleaned to be shown are left
    out."""
    directory = paths.personas_dir()
    if directory is None:
        return {}
    try:
        with os.scandir(directory) as entries:
            found = [Path(entry.path) for _, entry in zip(range(_MAX_FILES), entries, strict=False)]
    except OSError as error:
        notices.add_ignored(directory, error, "no persona is read")
        return {}
    return {
        path.stem: path
        for path in sorted(found)
        if path.suffix.lower() in SUFFIXES and path.stem and clean_line(path.stem, 60) == path.stem
    }
