"""The file that a command writes, checked before the work begins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from app.program.refusals import Refusal
from app.text.clean_text import clean_line


def check_output(
    command: str,
    path: Path,
    inputs: Iterable[Path],
    advice: str,
    replaces: bool = False,
) -> None:
    """Check that a file can be written under a name without the loss of another.

    Args:
        command: begins the message, "jalopy convert".
        inputs: files that the command reads; looked at only if there is a file of the name.
        advice: words that end the message about a file of that name, "(--force replaces it)".
        replaces: a file of that name may be replaced, unless it is one of the inputs.

    Raises:
        Refusal: the file is one of the inputs, by whatever name, or may not be replaced; it is
            not a regular file; its folder is missing.
    """
    shown = clean_line(str(path), 120)
    if path.exists():
        if any(_is_same(path, source) for source in inputs):
            problem = "is one of the files that are read, and would be lost (name another file)"
            raise Refusal(f"{command}: {shown}: {problem}")
        if not path.is_file():
            raise Refusal(f"{command}: {shown}: is not a regular file (name another file)")
        if not replaces:
            raise Refusal(f"{command}: {shown}: {advice}")
    elif not path.parent.is_dir():
        raise Refusal(f"{command}: {shown}: there is no such folder (make it, or name another)")


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one file: by links, relative paths or another case, too."""
    try:
        return path.samefile(other)
    except OSError:
        return False
