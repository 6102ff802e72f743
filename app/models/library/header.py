"""Header of a model file as plain values, and the small file that keeps those that were read
before.

A file that the engine cannot run has a header too, as far as it could be read, and a reason. The
engine's reader is imported on use. A kept header holds for a path, a size and a time of change, and
as long as the engine can run the same
things: a list of a hundred models opens none that did not change. The file is checked like any
other: what is not sound is read again. Nothing here raises, and losing the file costs a second.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.models.library.model_files import StoredModel, find_files, places
from app.program import paths
from app.program.refusals import exit_code_of
from app.program.settings import Settings
from app.program.small_file import JsonFile, checked
from app.text.record import record
from engine import MemoryNeeds

if TYPE_CHECKING:
    from app.documents.embedding_index import EmbeddingFile
    from engine import GGUFFile
    from engine.measure.fit import ModelNeeds

_LONGEST_TEXT = 120


@record
class ModelHeader:
    """One model, known by its header.

    All text is the file's own, unsanitised, cut off where it is long.
    """

    name: str = ""
    """What the engine calls it (``model_title``); ``general.name`` where it cannot run it."""
    architecture: str = ""
    parameters: int = 0
    """Elements of all tensors."""
    quantization: str = ""
    type_bytes: Mapping[str, int] = field(default_factory=dict)
    context_length: int = 0
    licence: str = ""
    reason: str = ""
    """Why the engine cannot run it, in one clean line; "" where nothing is against it."""
    needs: ModelNeeds | None = None
    """What it asks of a machine; None where the engine cannot run it."""
    memory: Mapping[str, MemoryNeeds] = field(default_factory=dict)
    """Size of the layers' memory, by type of the cache."""
    embeds: bool = False
    """Whether it is made for vectors of texts."""


def read_header(path: Path) -> ModelHeader:
    """Read one file's header, or all headers of a model in parts."""
    from engine import read_gguf

    try:
        gguf = read_gguf(path, keeps_strings=False)
    except Exception as error:
        return ModelHeader(reason=_reason(error, path))
    with closing(gguf):
        return _described(gguf)


def supported_names() -> str:
    """Name everything that the engine can run: what a cache remembers of refusals holds for these
    only."""
    from engine import QUANTS
    from engine.models import ARCHITECTURES, ENCODERS
    from engine.tokenizer.pretokenize import ALIASES, PRE_TOKENIZERS

    return ",".join([*ARCHITECTURES, *ENCODERS, *QUANTS, *PRE_TOKENIZERS, *ALIASES])


def _described(gguf: GGUFFile) -> ModelHeader:
    from engine import KV_TYPES, memory_needs
    from engine.measure.fit import needs_of
    from engine.models import read_config
    from engine.models.reading import RANK

    metadata = gguf.metadata
    architecture = _text(metadata.get("general.architecture"))
    context = metadata.get(f"{architecture}.context_length")
    types = Counter[str]()
    for tensor in gguf.tensors.values():
        types[tensor.type_name] += tensor.size_bytes
    header = ModelHeader(
        name=_text(metadata.get("general.name")),
        architecture=architecture,
        parameters=sum(math.prod(tensor.shape) for tensor in gguf.tensors.values()),
        quantization=types.most_common(1)[0][0] if types else "",
        type_bytes=dict(types.most_common()),
        context_length=context if type(context) is int and context > 0 else 0,
        licence=_text(metadata.get("general.license.name") or metadata.get("general.license")),
    )
    try:
        needs = needs_of(gguf)
        config = read_config(gguf)
        memory = {name: memory_needs(config, kv_type) for name, kv_type in KV_TYPES.items()}
    except Exception as error:
        return replace(header, reason=_reason(error, gguf.path))
    return replace(
        header,
        name=needs.name,
        quantization=needs.quantization,
        context_length=needs.context_length,
        needs=needs,
        memory=memory,
        embeds=(config.is_encoder or bool(config.pooling)) and config.pooling != RANK,
    )


def _reason(error: Exception, path: Path) -> str:
    """Return the refusal without the file's name, which is next to it; a bug is raised."""
    if exit_code_of(error) is None:
        raise error
    from engine.errors import shown

    return str(error).removeprefix(f"{shown(path.name)}: ")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    return ""


VERSION = 2
MOST_ENTRIES = 2_000
_MOST_FILE_BYTES = 8 << 20


class HeaderCache:
    """Answers from the file where that is possible; ``save`` keeps what was read again."""

    def __init__(
        self, path: Path | None = None, read: Callable[[Path], ModelHeader] = read_header
    ) -> None:
        self._file = JsonFile(path or paths.headers_file(), VERSION, _MOST_FILE_BYTES)
        self._read = read
        fields = [*ModelHeader.__dataclass_fields__]
        self._valid_for = hashlib.sha256(
            f"{VERSION} {fields} {supported_names()}".encode()
        ).hexdigest()[:16]
        self._entries = self._load()
        self._used: dict[str, Any] = {}
        self.n_read = 0
        """Headers that were not known."""

    def header(self, file: StoredModel) -> ModelHeader:
        """Return what the file's header says, from the cache or from the file."""
        key = os.fspath(file.path)
        stamp = [file.size_bytes, file.mtime_ns, file.n_parts]
        entry = self._entries.get(key)
        if isinstance(entry, list) and len(entry) == 2 and entry[0] == stamp:
            from engine.measure.fit import ModelNeeds

            with suppress(ValueError):
                known: ModelHeader = checked(ModelHeader, entry[1], ModelNeeds)
                self._used[key] = entry
                return known
        self.n_read += 1
        header = self._read(file.path)
        # what is no model at all is told quickly, and may be a file no one may read yet
        if header.architecture:
            self._used[key] = [stamp, asdict(header)]
        return header

    def save(self) -> None:
        """Keep what was asked for, and what else is known, if anything was read again."""
        if not self.n_read:
            return
        entries = {
            **{key: entry for key, entry in self._entries.items() if key not in self._used},
            **self._used,
        }
        kept = dict(list(entries.items())[-MOST_ENTRIES:])
        self._file.write(valid_for=self._valid_for, models=kept)

    def _load(self) -> dict[str, Any]:
        content = self._file.read()
        if content.get("valid_for") != self._valid_for:
            return {}
        models = content.get("models")
        if isinstance(models, dict):
            return models
        return {}


def embedding_file(settings: Settings) -> EmbeddingFile | None:
    """Return the smallest file that makes vectors of texts; None where there is none, or the
    settings want none."""
    if settings.search_by_meaning == "off":
        return None
    headers = HeaderCache()
    found = [
        one for one in find_files(places(settings.model_directories)) if headers.header(one).embeds
    ]
    headers.save()
    smallest = min(found, key=lambda one: (one.size_bytes, one.path), default=None)
    if smallest is None:
        return None
    from app.documents.embedding_index import EmbeddingFile

    return EmbeddingFile(
        smallest.path, f"{smallest.path}:{smallest.size_bytes}:{smallest.mtime_ns}"
    )
