"""Finds model files in a place by name and size; nothing is opened but Ollama's manifests.

Directories of others may hold anything: walks are bounded in depth and number, and loops of links end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from app.library.places import Place, read_store
from app.text.record import record
from engine import part_name

MOST_ENTRIES = 50_000
"""Of one place; what lies behind them is not looked at."""


@record
class FoundFile:
    """A file that looks like a model, or the first of several that are one."""

    path: Path
    title: str
    """What to call it, as it stands in names: to be cleaned before it is shown."""
    size_bytes: int
    """Of all parts that are there."""
    mtime_ns: int
    """Of the newest part."""
    place: str
    """The label of where it was found."""
    n_parts: int = 1
    """Files that were found; 1 for a whole model."""


def find_files(places: Iterable[Place]) -> list[FoundFile]:
    """Return the models of all places, each file once, in the order of the places and by name."""
    found: dict[tuple[int, int], FoundFile] = {}
    for place in places:
        files = _in_ollama(place) if place.is_ollama else _in_directory(place)
        for file, identity in sorted(files, key=lambda pair: pair[0].title.lower()):
            found.setdefault(identity, file)
    return list(found.values())


def file_at(path: Path, place: str) -> FoundFile | None:
    """Return the file at a path, wherever it lies; None where there is none."""
    status = _regular(path)
    return FoundFile(path, path.stem, status.st_size, status.st_mtime_ns, place) if status is not None else None


_Found = tuple[FoundFile, tuple[int, int]]


def _in_ollama(place: Place) -> Iterator[_Found]:
    for name, blob in read_store(place.path):
        status = _regular(blob)
        if status is not None:
            file = FoundFile(blob, name, status.st_size, status.st_mtime_ns, place.label)
            yield file, (status.st_dev, status.st_ino)


def _in_directory(place: Place) -> Iterator[_Found]:
    models: dict[tuple[Path, str, int], list[tuple[Path, os.stat_result]]] = {}
    for path in _gguf_files(place.path, place.depth):
        status = _regular(path)
        if status is not None:
            part = part_name(path.name)
            key = (path.parent, part.stem, part.count) if part else (path.parent, path.name, 0)
            models.setdefault(key, []).append((path, status))
    for (_, name, count), parts in models.items():
        parts.sort(key=lambda part: part[0].name)
        path, status = parts[0]
        title = name if count else name[: -len(".gguf")] or name
        size_bytes = sum(part.st_size for _, part in parts)
        newest_ns = max(part.st_mtime_ns for _, part in parts)
        file = FoundFile(path, title, size_bytes, newest_ns, place.label, len(parts))
        yield file, (status.st_dev, status.st_ino)


def _gguf_files(directory: Path, depth: int) -> Iterator[Path]:
    """Walk down, each directory once, files before directories."""
    seen: set[tuple[int, int]] = set()
    pending, n_left = [(directory, depth)], MOST_ENTRIES
    while pending and n_left > 0:
        place, levels = pending.pop(0)
        try:
            status = place.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(place) as entries:
                for entry in entries:
                    n_left -= 1
                    if n_left <= 0:
                        break
                    if _is_directory(entry):
                        if levels > 0 and not entry.name.startswith("."):
                            pending.append((Path(entry.path), levels - 1))
                    elif entry.name.lower().endswith(".gguf"):
                        yield Path(entry.path)
        except OSError:
            continue  # it is not there, or not ours to read


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """True for a directory that may be entered; broken or looping links are False."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _regular(path: Path) -> os.stat_result | None:
    """Return the status of a file with something in it; a directory or a pipe is no model, whatever its name."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None
