"""Ollama's store: manifests name models, blobs hold them under the hash of their content.

``manifests/HOST/NAMESPACE/NAME/TAG`` is JSON with layers; the one of the model's media type has the digest that names
the blob. Digests are checked to be one before they become a path (CVE-2024-37032 was exactly that).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from app.program.small_file import read_json_object

_MODEL_LAYER = "application/vnd.ollama.image.model"
_DEFAULT_HOST, _DEFAULT_NAMESPACE = "registry.ollama.ai", "library"
_MOST_MANIFEST_BYTES = 1 << 20
_MOST_MANIFESTS = 5_000
_LEVELS = 4
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def read_store(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names that the store gives to models, each with its file; the file need not exist."""
    for n, parts in enumerate(_manifests(directory / "manifests", ())):
        if n >= _MOST_MANIFESTS:
            return
        digest = _model_digest(directory.joinpath("manifests", *parts))
        if digest:
            blob = directory / "blobs" / f"sha256-{digest}"
            # Versions before 0.1.33 wrote a colon.
            older = blob.with_name(f"sha256:{digest}")
            is_older = os.name == "posix" and os.path.exists(older)  # of Path, it raises where nobody may look
            yield _short_name(parts), older if is_older else blob


def _manifests(directory: Path, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    try:
        with os.scandir(directory) as entries:
            names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError:
        return
    for name, is_directory in names:
        parts = (*above, name)
        if is_directory and len(parts) < _LEVELS:
            yield from _manifests(directory / name, parts)
        elif not is_directory and len(parts) == _LEVELS:
            yield parts


def _model_digest(manifest: Path) -> str:
    layers = read_json_object(manifest, _MOST_MANIFEST_BYTES).get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER:
            match = _DIGEST.fullmatch(str(layer.get("digest")))
            return match[1] if match else ""
    return ""


def _short_name(parts: tuple[str, ...]) -> str:
    """Write a name as Ollama does: the usual host and namespace go without saying."""
    host, namespace, name, tag = parts
    short = f"{name}:{tag}"
    if host == _DEFAULT_HOST:
        return short if namespace == _DEFAULT_NAMESPACE else f"{namespace}/{short}"
    return f"{host}/{namespace}/{short}"
