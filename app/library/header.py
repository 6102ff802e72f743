"""Header of a model file as plain values that a cache can keep. Imports the engine's reader on use.

A file that the engine cannot run has a header too, as far as it could be read, and a reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.program.refusals import exit_code_of
from app.text.record import record

if TYPE_CHECKING:
    from engine import GGUFFile, MemoryNeeds
    from engine.measure.fit import ModelNeeds

_LONGEST_TEXT = 120


@record
class ModelHeader:
    """One model, known by its header. All text is the file's own, unsanitised, cut off where it is long."""

    name: str = ""
    """What the engine calls it: ``general.name`` whole, or the file's stem."""
    architecture: str = ""
    parameters: int = 0
    """Elements of all tensors."""
    quantization: str = ""
    type_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of the tensors, by their types."""
    context_length: int = 0
    licence: str = ""
    """Where the file states one."""
    reason: str = ""
    """Why the engine cannot run it, in one clean line; "" where nothing is against it."""
    needs: ModelNeeds | None = None
    """What it asks of a machine; None where the engine cannot run it."""
    memory: Mapping[str, MemoryNeeds] = field(default_factory=dict)
    """Size of the layers' memory, by type of the cache."""

    def needs_with(self, kv_type: str) -> ModelNeeds | None:
        """Needs of the model with a cache of some type."""
        if self.needs is None:
            return None
        return replace(self.needs, memory=self.memory.get(kv_type, self.needs.memory))


def read_header(path: Path) -> ModelHeader:
    """Read one file's header, or all headers of a model in parts."""
    from engine import read_gguf

    try:
        gguf = read_gguf(path, keeps_strings=False)
    except Exception as error:
        return ModelHeader(reason=_reason(error, path))
    try:
        return _described(gguf)
    finally:
        gguf.close()


def supported_names() -> str:
    """Name everything that the engine can run: what a cache remembers of refusals holds for these only."""
    from engine import QUANTS
    from engine.models import ARCHITECTURES
    from engine.tokenizer.pretokenize import ALIASES, PRE_TOKENIZERS

    return ",".join([*ARCHITECTURES, *QUANTS, *PRE_TOKENIZERS, *ALIASES])


def _described(gguf: GGUFFile) -> ModelHeader:
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
        return _with_needs(header, gguf)
    except Exception as error:
        return replace(header, reason=_reason(error, gguf.path))


def _with_needs(header: ModelHeader, gguf: GGUFFile) -> ModelHeader:
    from engine import KV_TYPES, memory_needs
    from engine.measure.fit import needs_of
    from engine.models import read_config

    needs, config = needs_of(gguf), read_config(gguf)
    return replace(
        header,
        name=needs.name,
        quantization=needs.quantization,
        context_length=needs.context_length,
        needs=needs,
        memory={name: memory_needs(config, kv_type) for name, kv_type in KV_TYPES.items()},
    )


def _reason(error: Exception, path: Path) -> str:
    """Return the refusal without the file's name, which stands beside it; a bug is raised."""
    if exit_code_of(error) is None:
        raise error
    from engine.errors import shown

    return str(error).removeprefix(f"{shown(path.name)}: ")


def _text(value: Any) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
