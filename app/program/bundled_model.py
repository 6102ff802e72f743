"""The starter model that comes with the program: its file, and its name on the command line."""

from pathlib import Path

from app.program import paths

NAME = "starter"
WHAT_IT_IS = "This is the starter model: very small, it comes with Jalopy, and it may be wrong"


def starter_file() -> Path | None:
    """Return the file of the starter model; None if this installation has none."""
    path = paths.bundled("starter") / "starter.gguf"
    if path.is_file():
        return path
    return None


def is_starter(path: Path | str) -> bool:
    """Whether a path leads to the starter model."""
    bundled = starter_file()
    try:
        return bundled is not None and bundled.samefile(path)
    except (OSError, ValueError):
        return False


def model_path(text: str) -> Path:
    """Return the path for a user's text:

    "starter" is the starter model unless a file has that name.
    """
    path = paths.expanded(text)
    if text == NAME and not path.is_file():
        bundled = starter_file()
    else:
        bundled = None
    return bundled or path
