"""Headers that were read before, kept in one small file: a list of a hundred models opens none that did not change.

An entry holds for a path, a size and a time of change, and as long as the engine can run the same things. The file is
checked like any other: what is not sound is read anew. Nothing here raises, and losing the file costs a second.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from app.library.find import FoundFile
from app.library.header import ModelHeader, read_header, supported_names
from app.program import paths
from app.program.small_file import JsonFile
from engine import MemoryNeeds

VERSION = 2
FILE_NAME = "models.json"
MOST_ENTRIES = 2_000
_MOST_FILE_BYTES = 8 << 20
_LARGEST = 1 << 62


class HeaderCache:
    """Answers from the file where that is possible; ``save`` keeps what was read anew."""

    def __init__(self, path: Path | None = None, read: Callable[[Path], ModelHeader] = read_header) -> None:
        directory = paths.cache_dir()
        path = path or (directory / FILE_NAME if directory else None)
        self._file = JsonFile(path, VERSION, _MOST_FILE_BYTES)
        self._read = read
        self._valid_for = hashlib.sha256(f"{VERSION} {supported_names()}".encode()).hexdigest()[:16]
        self._entries = self._load()
        self._used: dict[str, Any] = {}
        self.n_read = 0
        """Headers that were not known."""

    def header(self, file: FoundFile) -> ModelHeader:
        """Return what the file's header says, from the cache or from the file."""
        key = os.fspath(file.path)
        stamp = [file.size_bytes, file.mtime_ns, file.n_parts]
        entry = self._entries.get(key)
        if isinstance(entry, list) and len(entry) == 2 and entry[0] == stamp:
            header = header_of(entry[1])
            if header is not None:
                self._used[key] = entry
                return header
        self.n_read += 1
        header = self._read(file.path)
        if header.architecture:  # what is no model at all is told quickly, and may be a file nobody may read yet
            self._used[key] = [stamp, asdict(header)]
        return header

    def save(self) -> None:
        """Keep what was asked for, and what else is known, if anything was read anew."""
        if not self.n_read:
            return
        entries = {**{key: entry for key, entry in self._entries.items() if key not in self._used}, **self._used}
        kept = dict(list(entries.items())[-MOST_ENTRIES:])
        self._file.write(valid_for=self._valid_for, models=kept)

    def _load(self) -> dict[str, Any]:
        content = self._file.read()
        if content.get("valid_for") != self._valid_for:
            return {}
        models = content.get("models")
        return models if isinstance(models, dict) else {}


def header_of(values: Any) -> ModelHeader | None:
    """Return a header from what JSON held; None where that is not sound."""
    from engine.measure.fit import ModelNeeds

    if not isinstance(values, dict):
        return None
    values = dict(values)
    needs, memory = values.pop("needs", None), values.pop("memory", None)
    if not isinstance(memory, dict):
        return None
    sizes = {kv_type: size for kv_type, one in memory.items() if (size := _memory_of(one)) is not None}
    if needs is not None:
        needs = {**needs, "memory": _memory_of(needs.get("memory"))} if isinstance(needs, dict) else {}
        if not _fits(ModelNeeds, needs) or needs["memory"] is None:
            return None
        needs = ModelNeeds(**needs)
    if len(sizes) < len(memory) or not _fits(ModelHeader, {**values, "needs": None, "memory": {}}):
        return None
    return ModelHeader(**values, needs=needs, memory=sizes)


def _memory_of(values: Any) -> MemoryNeeds | None:
    """Return the size of a memory as the file holds it; None where that is not sound."""
    if not isinstance(values, dict) or set(values) != {one.name for one in fields(MemoryNeeds)}:
        return None
    rings, counts = values["rings"], {name: one for name, one in values.items() if name != "rings"}
    if not isinstance(rings, list) or not all(isinstance(one, list) and len(one) == 2 for one in rings):
        return None
    if not all(map(_is_count, (*counts.values(), *(n for one in rings for n in one)))):
        return None
    return MemoryNeeds(**counts, rings=tuple((most, each) for most, each in rings))


def _fits(kind: Any, values: Any) -> bool:
    """Whether every field is there and of its kind: text, a count, or counts by name."""
    if not isinstance(values, dict) or set(values) != {one.name for one in fields(kind)}:
        return False
    return all(_is_sound(str(one.type), values[one.name]) for one in fields(kind))


def _is_sound(kind: str, value: Any) -> bool:
    if kind == "str":
        return isinstance(value, str)
    if kind == "int":
        return _is_count(value)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "MemoryNeeds":
        return isinstance(value, MemoryNeeds)
    if kind.startswith("Mapping"):
        return isinstance(value, Mapping) and all(_is_count(one) for one in value.values())
    return value is None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST
