"""The model that comes with the program: where it is kept, and what it is called on the command
line."""

from pathlib import Path

from app.program import paths

NAME = "starter"
WHAT_IT_IS = "This is the starter model: very small, it comes with Jalopy, and it may be wrong"


def starter_file() -> Path | None:
    """Return the bundled model's file, or None where an installation lacks it."""
    path = paths.bundled("starter") / "starter.gguf"
    if path.is_file():
        return path
    return None


def is_starter(path: Path | str) -> bool:
    """Whether a path leads to the bundled model."""
    bundled = starter_file()
    try:
        return bundled is not None and bundled.samefile(path)
    except (OSError, ValueError):
        return False


def model_path(given: str) -> Path:
    """Return the file that a user means: ``starter`` is the bundled model where no file has that
    name."""
    path = paths.expanded(given)
    if given == NAME and not path.is_file():
        bundled = starter_file()
    else:
        bundled = None
    return bundled or path
