"""The user's settings file, as tests have it."""

from pathlib import Path

from app.program import paths


def own_settings(text: str) -> Path:
    """Write the file where the platform has it."""
    path = paths.config_file()
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
