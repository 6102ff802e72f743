"""Check of a command's output file before the work begins."""

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
    """Check that a command can write its output file without losing another file.

    Args:
        command: start of the error line, e.g. "jalopy convert".
        path: the output file.
        inputs: files that the command reads; iterated only if the output file exists.
        advice: end of the error line if the file exists, e.g. "exists (--force replaces it)".
        replaces: whether an existing file may be replaced; an input file never is.

    Raises:
        Refusal: the file exists and may not be replaced; it is an input file or not a regular file;
            or its folder does not exist.
    """
    label = clean_line(str(path), 120)
    if path.exists():
        if any(_is_same_file(path, source) for source in inputs):
            raise Refusal(
                f"{command}: {label}: is an input file and would be lost (name another file)"
            )
        if not path.is_file():
            raise Refusal(f"{command}: {label}: is not a regular file (name another file)")
        if not replaces:
            raise Refusal(f"{command}: {label}: {advice}")
    elif not path.parent.is_dir():
        raise Refusal(f"{command}: {label}: its folder does not exist (create it, or name another)")


def _is_same_file(path: Path, second_path: Path) -> bool:
    """Whether two paths lead to the same file, also through links or another spelling."""
    try:
        return path.samefile(second_path)
    except OSError:
        return False
