"""Prompts: messages with blanks to fill, from ``.md`` and ``.txt`` files of the user.

Some come with the program; the user's file with the same name replaces one.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.program.small_file import read_text
from app.program.text_folder import text_files
from app.text.clean_text import clean_line, clean_text

MAX_BYTES = 256 << 10
"""Limit on a file."""
BLANK = re.compile(r"\{\{[^{}\n]{1,60}\}\}")
"""A blank to fill, such as ``{{topic}}``."""


def prompt_names() -> list[str]:
    """Return the sorted names of all prompts."""
    return sorted(_files())


def load_prompt(name: str) -> str:
    """Return the text of a prompt.

    Raises Refusal: the name is unknown or the file cannot be used.
    """
    files = _files()
    if name not in files:
        nearest = difflib.get_close_matches(name, files, n=1, cutoff=0.5)
        hint = f"nearest: {nearest[0]}" if nearest else f"known: {', '.join(sorted(files))}"
        raise Refusal(
            f"there is no prompt {clean_line(name, 60)!r} ({clean_line(hint, 200)})",
            exit_codes.USAGE,
        )
    text = clean_text(read_text(files[name], "prompt", MAX_BYTES)).strip()
    if not text:
        raise Refusal(f"prompt {name} is empty (write a message into it)", exit_codes.BAD_DATA)
    return text


def prompts_line() -> str:
    """Return the names of all prompts, and where more can be added."""
    line = f"prompts: {', '.join(prompt_names())} (/prompt NAME puts one into the message"
    directory = paths.prompts_dir()
    if directory is not None:
        line += f"; add NAME.md to {directory}"
    return f"{line})"


def _files() -> dict[str, Path]:
    own_files = text_files(paths.prompts_dir(), "your prompts are not read")
    return {**text_files(paths.bundled("config") / "prompts", "prompts are not read"), **own_files}
