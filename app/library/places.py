"""Directories that may hold models: the user's, the stores of other programs, the current directory, and our own.

Reads a few small configuration files of those programs and no model. Nothing here raises. In Ollama's store the file
``manifests/HOST/NAMESPACE/NAME/TAG`` is JSON with layers; the digest of the model's layer names the blob. A digest is
checked before it becomes part of a path (CVE-2024-37032).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from app.program import paths
from app.program.bundled_model import starter_file
from app.program.small_file import read_bounded, read_json_object
from app.text.record import record

_MOST_POINTER_BYTES = 1 << 16
DEEP = 8
"""Levels below a place that are looked into; no store puts its files deeper."""


@record
class Place:
    """One directory to look in."""

    label: str
    """How lists name it: a program's name or the directory."""
    path: Path
    depth: int = DEEP
    """Levels of directories below it that are looked into; 0 for its own files only."""
    is_ollama: bool = False
    """It is a store of Ollama's, with manifests and blobs."""


def places(
    directories: Sequence[str] = (), environ: Mapping[str, str] | None = None, home: Path | None = None
) -> list[Place]:
    """Return every directory to look in, whether it exists or not, each once; of the process's user by default."""
    environ = os.environ if environ is None else environ
    home = user_home() if home is None else home
    found: dict[str, Place] = {}
    for place in _all_places(directories, environ, home):
        found.setdefault(os.path.realpath(place.path), place)
    return list(found.values())


def download_directory(directories: Sequence[str]) -> Path | None:
    """Return where a downloaded model goes: the first directory of the settings, else one of our own."""
    given = next((path for path in map(_expanded, directories) if path is not None), None)
    data = paths.data_dir()
    return given or (data / "models" if data else None)


def hugging_face_home(environ: Mapping[str, str], home: Path | None) -> Path | None:
    """Return the directory of Hugging Face's programs; it holds the token and the cache."""
    if environ.get("HF_HOME"):
        return _expanded(environ["HF_HOME"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "huggingface"
    return home / ".cache" / "huggingface" if home else None


def _all_places(directories: Sequence[str], environ: Mapping[str, str], home: Path | None) -> Iterator[Place]:
    for text in directories:
        if path := _expanded(text):
            yield Place(_shortened(path, home), path)
    if data := paths.data_dir():
        yield Place("downloads", data / "models")
    for path in _ollama(environ, home):
        yield Place("Ollama", path, is_ollama=True)
    for path in _lm_studio(environ, home):
        yield Place("LM Studio", path)
    for path in _hugging_face(environ, home):
        yield Place("Hugging Face", path)
    for path in _llama_cpp(environ, home):
        yield Place("llama.cpp", path)
    with contextlib.suppress(OSError):  # it was deleted
        yield Place("this directory", Path.cwd(), depth=0)
    if starter := starter_file():
        yield Place("comes with Jalopy", starter.parent, depth=0)


def _ollama(environ: Mapping[str, str], home: Path | None) -> Iterator[Path]:
    if path := _expanded(environ.get("OLLAMA_MODELS", "")):
        yield path
    if home:
        yield home / ".ollama" / "models"
    if os.name == "posix":  # where the service keeps them
        yield Path("/usr/share/ollama/.ollama/models")
        yield Path("/var/lib/ollama/models")


def _lm_studio(environ: Mapping[str, str], home: Path | None) -> Iterator[Path]:
    homes = [_expanded(environ.get("LMSTUDIO_HOME", ""))]
    if home:
        homes += [_pointed_to(home / ".lmstudio-home-pointer"), home / ".lmstudio", home / ".cache" / "lm-studio"]
    for directory in homes:
        if directory is not None:
            if path := _downloads_folder(directory / "settings.json"):
                yield path
            yield directory / "models"


def _hugging_face(environ: Mapping[str, str], home: Path | None) -> Iterator[Path]:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if path := _expanded(environ.get(name, "")):
            yield path
            return
    if path := hugging_face_home(environ, home):
        yield path / "hub"


def _llama_cpp(environ: Mapping[str, str], home: Path | None) -> Iterator[Path]:
    if path := _expanded(environ.get("LLAMA_CACHE", "")):
        yield path
    elif home:
        yield home / ".cache" / "llama.cpp"


def _pointed_to(pointer: Path) -> Path | None:
    """Return the directory that a file of one line names."""
    try:
        raw = read_bounded(pointer, _MOST_POINTER_BYTES) or b""
        return _expanded(raw.decode("utf-8").strip())
    except (OSError, ValueError):
        return None


def _downloads_folder(settings: Path) -> Path | None:
    folder = read_json_object(settings, _MOST_POINTER_BYTES).get("downloadsFolder")
    return _expanded(folder) if isinstance(folder, str) else None


def _expanded(text: str) -> Path | None:
    """Return an absolute path; None for what is none."""
    if not text or "\0" in text:
        return None
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # a home that is not known
        return None
    return path if path.is_absolute() else None


def _shortened(path: Path, home: Path | None) -> str:
    return f"~/{path.relative_to(home)}" if home and home in path.parents else str(path)


def user_home() -> Path | None:
    """Return the user's home directory; None if it is unknown."""
    try:
        return Path.home()
    except RuntimeError:
        return None


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
