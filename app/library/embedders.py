"""Embedding models of this machine: the one that the search in documents uses."""

from __future__ import annotations

from app.documents.meaning import EmbeddingFile
from app.library.header import HeaderCache
from app.library.places import find_files, places
from app.program.settings import Settings


def embedding_file(settings: Settings) -> EmbeddingFile | None:
    """Return the smallest file that makes vectors of texts; None where there is none, or the settings want none."""
    if settings.search_by_meaning == "off":
        return None
    headers = HeaderCache()
    found = [one for one in find_files(places(settings.model_directories)) if headers.header(one).embeds]
    headers.save()
    if not found:
        return None
    smallest = min(found, key=lambda one: (one.size_bytes, one.path))
    return EmbeddingFile(smallest.path, f"{smallest.path}:{smallest.size_bytes}:{smallest.mtime_ns}")
