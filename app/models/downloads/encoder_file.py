"""The encoder for pictures (mmproj) that belongs to a model of a repository.

Many repositories call theirs mmproj-F16.gguf. In a folder with several models its name needs that
of the repository.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from app.models.downloads.hub import RemoteFile, Repository, is_safe_name
from app.models.library.encoders import EncoderFinder
from app.models.library.header import HeaderCache
from app.models.library.model_files import file_at

MMPROJ = re.compile(r"mmproj", re.IGNORECASE)
CLIP = "clip"
"""Architecture of encoders, which the hub may state for a repository that has one."""
_TYPES = "q8_0", "f16", "bf16", "f32"
"""Types in the order of preference: the smallest that loses little."""
_GGUF = ".gguf"
_REPOSITORY_ENDING = re.compile(r"[-._]?gguf$", re.IGNORECASE)


def encoder_of(repository: Repository, directory: Path) -> RemoteFile | None:
    """Return the encoder for the models of a repository, with its name in a directory; None if the
    repository has none, or its models cannot see in this program."""
    files = [file for file in repository.files if MMPROJ.search(file.name)]
    if not files or not _may_see(repository.architecture):
        return None
    file = min(files, key=lambda file: (_rank(file.name), file.size_bytes, file.name))
    owner, _, title = repository.name.rpartition("/")
    named = replace(file, name=local_name(title, file.name))
    if _is_other(directory / named.name, file.size_bytes):
        named = replace(file, name=local_name(f"{owner}-{title}", file.name))
    return named


def local_name(title: str, name: str) -> str:
    """Return the name of an encoder's file, with the title of its repository in it."""
    title = _REPOSITORY_ENDING.sub("", title)
    if title.lower() in name.lower():
        return name
    local = f"mmproj-{title}-{_type_of(name)}{_GGUF}"
    if is_safe_name(local):
        return local
    return name


def lacks_encoder(model: Path) -> bool:
    """Whether a model on this machine has no encoder in its folder that fits."""
    file = file_at(model, "")
    if file is None:
        return False
    headers = HeaderCache()
    return EncoderFinder(headers).find(file, headers.header(file)) is None


def _is_other(path: Path, size_bytes: int) -> bool:
    """Whether a path is a file of another size."""
    try:
        return path.stat().st_size != size_bytes
    except OSError:
        return False


def _may_see(architecture: str) -> bool:
    from engine.vision.families import FAMILIES, load_family

    if architecture in ("", CLIP):
        return True
    return any(architecture in load_family(name).architectures for name in FAMILIES)


def _type_of(name: str) -> str:
    words = re.split(r"[-.]", name.lower().removesuffix(_GGUF))
    return next((kind.upper() for kind in _TYPES if kind in words), "model")


def _rank(name: str) -> int:
    kind = _type_of(name).lower()
    return _TYPES.index(kind) if kind in _TYPES else len(_TYPES)
