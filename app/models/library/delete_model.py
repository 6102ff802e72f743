"""Deleting a model: its parts, and its encoder for pictures unless another model uses it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from app.models.library.listing import ModelEntry
from app.models.library.model_files import OTHER_PROGRAMS
from app.program.bundled_model import is_starter
from app.text import figures
from app.text.clean_text import clean_line
from engine import part_name

_TITLE_CHARS = 40


def refusal(entry: ModelEntry) -> str:
    """Return why a model cannot be deleted here; "" if it can."""
    if entry.served is not None:
        return "This model is on the server"
    if not entry.is_here:
        return "This model is not downloaded"
    if is_starter(entry.path):
        return "This model comes with Jalopy"
    if entry.place in OTHER_PROGRAMS:
        return f"This model belongs to {entry.place}: delete it there"
    return ""


def own_encoder(entry: ModelEntry, entries: Iterable[ModelEntry]) -> str:
    """Return the path of the encoder that only this model of a list uses; "" if there is none."""
    is_shared = any(
        other.encoder == entry.encoder and other.path != entry.path for other in entries
    )
    if is_shared:
        return ""
    return entry.encoder


def question(entry: ModelEntry, entries: Iterable[ModelEntry]) -> str:
    """Return a question that names everything that would be deleted."""
    title = clean_line(entry.title, _TITLE_CHARS)
    size = figures.size(entry.size_bytes)
    encoder = ""
    if own_encoder(entry, entries):
        encoder = f" and its encoder for pictures ({figures.size(entry.encoder_file_bytes)})"
    return f"Delete {title} ({size}){encoder} from the disk? y deletes, any other key cancels."


def delete_model(entry: ModelEntry, entries: Iterable[ModelEntry]) -> None:
    """Delete the files of a model.

    Raises:
        OSError: A file cannot be deleted.
    """
    paths = [entry.path]
    name = part_name(entry.path.name)
    if name is not None:
        numbers = range(1, name.count + 1)
        paths = [entry.path.with_name(name.of(number)) for number in numbers]
    encoder = own_encoder(entry, entries)
    if encoder:
        paths.append(Path(encoder))
    for path in paths:
        path.unlink(missing_ok=True)
