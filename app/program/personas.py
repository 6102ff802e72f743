"""Personas: system prompts from ``.md`` and ``.txt`` files of the program and of the user.

A file may begin with generation parameters between two lines ``---``, such as
``temperature: 0.3``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.program.samplers import SAMPLERS
from app.program.settings import as_number
from app.program.small_file import read_text
from app.program.text_folder import text_files
from app.text.clean_text import clean_line, clean_text
from app.text.record import record

MAX_BYTES = 64 << 10
"""Limit on a file; a larger one would fill the context of most models."""
_HEAD = re.compile(
    r"---\n((?:[a-z_]+ *: *-?[0-9]{1,19}(?:\.[0-9]{1,18})?(?:e-?[0-9]{1,2})? *\n)+)---(?:\n|$)"
)
"""Parameters at the beginning of a file. Other lines belong to the system prompt."""


def persona_names() -> list[str]:
    """Return the sorted names of all personas."""
    return sorted(_files())


@record
class Persona:
    """A system prompt, generation parameters by name, or both."""

    system: str
    parameters: Mapping[str, float] = field(default_factory=dict)


def load_persona(name: str) -> Persona:
    """Return a persona; the values of its parameters are not checked.

    Raises Refusal: the name is unknown or the file cannot be used.
    """
    files = _files()
    if name not in files:
        matches = difflib.get_close_matches(name, files, n=1, cutoff=0.5)
        if matches:
            hint = f"nearest: {matches[0]}"
        else:
            hint = clean_line(f"known: {', '.join(files)}", 200)
        raise Refusal(f"there is no persona {clean_line(name, 60)!r} ({hint})", exit_codes.USAGE)
    text = read_system_file(files[name])
    head = _HEAD.match(text)
    if head is None:
        return Persona(text)
    lines = (line.partition(":") for line in head[1].splitlines())
    parameters: dict[str, Any] = {key.strip(): as_number(value) for key, _, value in lines}
    names = list(SAMPLERS)
    for key in parameters:
        if key not in names:
            nearest = difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0]
            raise Refusal(
                f"persona {name}: there is no parameter {clean_line(key, 40)} (nearest: {nearest})"
            )
    return Persona(text[head.end() :].strip(), parameters)


def save_persona(name: str, persona: Persona) -> str:
    """Save a persona as a file and return a line for the user.

    Raises Refusal: the name cannot be used or exists, or the file cannot be written.
    """
    directory = paths.personas_dir()
    if directory is None:
        raise Refusal("there is no home directory for personas")
    if not re.fullmatch(r"\w[\w .-]{0,59}", name):
        raise Refusal(
            f"{clean_line(name, 60)!r} cannot be a persona's name "
            "(use letters, digits, spaces, . - and _)"
        )
    if not (persona.system or persona.parameters):
        raise Refusal(
            "there is nothing to save: /set changes parameters, /system TEXT the system prompt"
        )
    if name in _files():
        raise Refusal(f"persona {name} exists already (choose another name)")
    head = "".join(f"{key}: {value!r}\n" for key, value in persona.parameters.items())
    path = directory / f"{name}.md"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write((f"---\n{head}---\n" if head else "") + f"{persona.system}\n")
    except OSError as error:
        raise Refusal(f"{clean_line(str(path), 200)}: {error.strerror} (not saved)") from error
    return f"Saved. /persona {name} starts a chat with it"


def read_system_file(path: Path) -> str:
    """Return the cleaned text of a system prompt file.

    Raises Refusal: it cannot be read, or is empty, too large or not text.
    """
    text = clean_text(read_text(path, "system prompt", MAX_BYTES)).strip()
    if not text:
        raise Refusal(
            f"{clean_line(str(path), 200)}: is empty (write a system prompt into it)",
            exit_codes.BAD_DATA,
        )
    return text


def _files() -> dict[str, Path]:
    """Return the files of personas by name; the user's file with the same name replaces one of the
    program."""
    bundled_files = text_files(paths.bundled("config") / "personas", "personas are not read")
    own_files = text_files(paths.personas_dir(), "your personas are not read")
    return dict(sorted({**bundled_files, **own_files}.items()))
