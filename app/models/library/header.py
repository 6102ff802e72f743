"""Model headers as plain values, with a cache.

A file that the engine cannot run has a header, too, as far as it is readable, and a reason. A
cached header is valid for a path, size and modification time, while the engine supports the same
formats. So a list of a hundred models opens only changed files. The cache is not trusted, nothing
here raises, and losing the cache costs about a second.
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
    """Facts of a model's header.

    Texts are from the file: not cleaned, but shortened.
    """

    name: str = ""
    """Title by the engine (``model_title``), or ``general.name`` if the engine cannot run the
    model.
    """
    architecture: str = ""
    parameters: int = 0
    """Number of elements of all tensors."""
    quantization: str = ""
    type_bytes: Mapping[str, int] = field(default_factory=dict)
    context_length: int = 0
    licence: str = ""
    reason: str = ""
    """Reason why the engine cannot run the model, in one clean line; "" if it can."""
    needs: ModelNeeds | None = None
    """Needs of the model; None if the engine cannot run it."""
    memory: Mapping[str, MemoryNeeds] = field(default_factory=dict)
    """Size of the KV cache by type."""
    embeds: bool = False
    """Whether the model computes embeddings."""
    dim: int = 0
    """Width of the model; 0 if the engine cannot run it."""
    projector: str = ""
    """Family of an encoder for pictures (mmproj); "" for models and unusable encoders."""
    text_width: int = 0
    """Width of the models that the encoder belongs to."""
    encoder_bytes: int = 0
    """Memory that an encoder takes to read a picture; 0 for models."""


def read_header(path: Path) -> ModelHeader:
    """Read the header of a file, or all headers of a split model."""
    from engine import read_gguf

    try:
        gguf = read_gguf(path, keeps_strings=False)
    except Exception as error:
        return ModelHeader(reason=_reason(error, path))
    with closing(gguf):
        return _from_gguf(gguf)


def supported_names() -> str:
    """Return the names of everything that the engine supports; cached refusals depend on it."""
    from engine import QUANTS
    from engine.models import ARCHITECTURES, ENCODERS
    from engine.tokenizer.pretokenize import ALIASES, PRE_TOKENIZERS
    from engine.vision.families import FAMILIES

    names = [*ARCHITECTURES, *ENCODERS, *QUANTS, *PRE_TOKENIZERS, *ALIASES, *FAMILIES]
    return ",".join(names)


def _with_projector(header: ModelHeader, path: Path) -> ModelHeader:
    """Add the facts about an encoder for pictures, or the reason why it cannot be used."""
    from engine.vision.mmproj import read_mmproj
    from engine.vision.needs import needed_bytes

    try:
        file = read_mmproj(path)
    except Exception as error:
        return replace(header, reason=_reason(error, path))
    with closing(file):
        return replace(
            header,
            reason="is an encoder for pictures, not a model",
            projector=file.config.projector,
            text_width=file.config.text_width,
            encoder_bytes=needed_bytes(file),
        )


def _from_gguf(gguf: GGUFFile) -> ModelHeader:
    from engine import KV_TYPES, memory_needs
    from engine.measure.fit import needs_of
    from engine.models import read_config
    from engine.models.reading import RANK
    from engine.vision.mmproj import ARCHITECTURE

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
    if architecture == ARCHITECTURE:
        return _with_projector(header, gguf.path)
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
        dim=config.dim,
        embeds=(config.is_encoder or bool(config.pooling)) and config.pooling != RANK,
    )


def _reason(error: Exception, path: Path) -> str:
    """Return the engine's refusal without the file name; raise other errors."""
    if exit_code_of(error) is None:
        raise error
    from engine.errors import printable

    return str(error).removeprefix(f"{printable(path.name)}: ")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    return ""


VERSION = 2
MOST_ENTRIES = 2_000
_MOST_FILE_BYTES = 8 << 20


class HeaderCache:
    """Cache of headers in a file. ``save`` writes new headers."""

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
        """Number of headers read from model files."""

    def header(self, file: StoredModel) -> ModelHeader:
        """Return the header of a file, from the cache if it is there."""
        key = os.fspath(file.path)
        stamp = [file.size_bytes, file.mtime_ns, file.n_parts]
        entry = self._entries.get(key)
        if isinstance(entry, list) and len(entry) == 2 and entry[0] == stamp:
            from engine.measure.fit import ModelNeeds

            with suppress(ValueError):
                cached_header: ModelHeader = checked(ModelHeader, entry[1], ModelNeeds)
                self._used[key] = entry
                return cached_header
        self.n_read += 1
        header = self._read(file.path)
        # other files are recognised quickly, and may become readable later
        if header.architecture:
            self._used[key] = [stamp, asdict(header)]
        return header

    def save(self) -> None:
        """Save the cache if any header was read."""
        if not self.n_read:
            return
        entries = {
            **{key: entry for key, entry in self._entries.items() if key not in self._used},
            **self._used,
        }
        newest_entries = dict(list(entries.items())[-MOST_ENTRIES:])
        self._file.write(valid_for=self._valid_for, models=newest_entries)

    def _load(self) -> dict[str, Any]:
        content = self._file.read()
        if content.get("valid_for") != self._valid_for:
            return {}
        models = content.get("models")
        if isinstance(models, dict):
            return models
        return {}


def embedding_file(settings: Settings) -> EmbeddingFile | None:
    """Return the smallest embedding model; None if there is none or the settings turn it off."""
    if settings.search_by_meaning == "off":
        return None
    headers = HeaderCache()
    candidates = [
        file
        for file in find_files(places(settings.model_directories))
        if headers.header(file).embeds
    ]
    headers.save()
    smallest = min(candidates, key=lambda file: (file.size_bytes, file.path), default=None)
    if smallest is None:
        return None
    from app.documents.embedding_index import EmbeddingFile

    return EmbeddingFile(
        smallest.path, f"{smallest.path}:{smallest.size_bytes}:{smallest.mtime_ns}"
    )
