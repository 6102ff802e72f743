"""Model files and the directories to search: the user's, other programs', the current one and
Jalopy's own.

This reads small configuration files and Ollama's manifests, but no model. Nothing here raises.
Searches are bounded in depth and number, and loops of links end. In Ollama's store the file
``manifests/HOST/NAMESPACE/NAME/TAG`` is JSON with layers; the digest of the model's layer names the
blob. A digest is checked before it becomes part of a path (CVE-2024-37032).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from app.program import paths
from app.program.bundled_model import starter_file
from app.program.small_file import read_bounded, read_json_object
from app.program.state import load_state
from app.text.record import record
from engine import part_name

_MOST_POINTER_BYTES = 1 << 16
_OLLAMAS_SERVICE = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama/models")
MOST_FOLDERS = 10
"""Limit on folders that are listed because a model in them was opened."""
OTHER_PROGRAMS = "Ollama", "LM Studio", "Hugging Face", "llama.cpp"
"""Labels of places that belong to other programs: nothing is added there."""
DEEP = 8
"""Levels of subdirectories to search; no program stores models deeper."""


@record
class Place:
    """A directory to search."""

    label: str
    """Name in lists: a program, or the directory."""
    path: Path
    depth: int = DEEP
    """Levels of subdirectories to search; 0 for none."""
    is_ollama: bool = False
    """Whether it is a store of Ollama, with manifests and blobs."""


def places(directories: Sequence[str] = ()) -> list[Place]:
    """Return all directories to search, each once, whether they exist or not."""
    by_path: dict[str, Place] = {}
    for directory in _all_places(directories):
        by_path.setdefault(os.path.realpath(directory.path), directory)
    return list(by_path.values())


def newly_listed_directory(model_path: Path | str, directories: Sequence[str]) -> str:
    """Return a line about a folder that is newly listed because a model in it was opened; "" if
    there is none.
    """
    folder = Path(os.path.abspath(model_path)).parent
    real = Path(os.path.realpath(folder))
    for directory in places(directories):
        top = Path(os.path.realpath(directory.path))
        if real == top or (directory.depth and top in real.parents):
            return ""
    n_models = len(find_files([Place("", folder, depth=0)]))
    if n_models > 1:
        return (
            f"Found {n_models} models in {_label(folder, _expanded('~'))}; /models lists them now"
        )
    return ""


def download_directory(directories: Sequence[str]) -> Path | None:
    """Return the directory for downloads: the first one of the settings, or Jalopy's own."""
    first_directory = next((path for path in map(_expanded, directories) if path is not None), None)
    data = paths.data_dir()
    return first_directory or (data / "models" if data else None)


def hugging_face_home() -> Path | None:
    """Return the directory of Hugging Face's programs, with token and cache."""
    if os.environ.get("HF_HOME"):
        return _expanded(os.environ["HF_HOME"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "huggingface"
    return _expanded("~/.cache/huggingface")


def _all_places(directories: Sequence[str]) -> Iterator[Place]:
    home = _expanded("~")
    for path in filter(None, map(_expanded, directories)):
        yield Place(_label(path, home), path)
    if data := paths.data_dir():
        yield Place("downloads", data / "models")
    for label, texts in (
        ("Ollama", [os.environ.get("OLLAMA_MODELS", ""), "~/.ollama/models", *_OLLAMAS_SERVICE]),
        ("LM Studio", _lm_studio()),
        ("Hugging Face", [_hugging_face()]),
        ("llama.cpp", [_first_path(os.environ.get("LLAMA_CACHE", ""), "~/.cache/llama.cpp")]),
    ):
        yield from (
            Place(label, path, is_ollama=label == "Ollama")
            for path in filter(None, map(_expanded, texts))
        )
    for folder in _opened_in():
        yield Place(_label(folder, home), folder, depth=0)
    with contextlib.suppress(OSError):  # the directory may be deleted
        yield Place("this directory", Path.cwd(), depth=0)
    if starter := starter_file():
        yield Place("comes with Jalopy", starter.parent, depth=0)


def _label(path: Path, home: Path | None) -> str:
    if home and home in path.parents:
        return f"~/{path.relative_to(home)}"
    return str(path)


def _opened_in() -> list[Path]:
    """Return the folders of opened models, the last one first."""
    opened = reversed(load_state()[0].opened_models)
    return list(dict.fromkeys(Path(path).parent for path in opened))[:MOST_FOLDERS]


def _lm_studio() -> Iterator[str]:
    homes = [
        os.environ.get("LMSTUDIO_HOME", ""),
        _lm_studios_pointer(),
        "~/.lmstudio",
        "~/.cache/lm-studio",
    ]
    for directory in filter(None, map(_expanded, homes)):
        folder = read_json_object(directory / "settings.json", _MOST_POINTER_BYTES).get(
            "downloadsFolder"
        )
        yield folder if isinstance(folder, str) else ""
        yield str(directory / "models")


def _lm_studios_pointer() -> str:
    """Return the content of LM Studio's pointer file: the path of its directory."""
    pointer = _expanded("~/.lmstudio-home-pointer")
    with contextlib.suppress(OSError, ValueError):
        if pointer:
            return (read_bounded(pointer, _MOST_POINTER_BYTES) or b"").decode("utf-8").strip()
        return ""
    return ""


def _hugging_face() -> str:
    home = hugging_face_home()
    caches = [os.environ.get(name, "") for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")]
    return _first_path(*caches, str(home / "hub") if home else "")


def _first_path(*texts: str) -> str:
    return next(filter(_expanded, texts), "")


def _expanded(text: str) -> Path | None:
    """Return an absolute path; None if the text is not one."""
    if not text or "\0" in text:
        return None
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # the home directory is not known
        return None
    if path.is_absolute():
        return path
    return None


_MODEL_LAYER = "application/vnd.ollama.image.model"
_DEFAULT_HOST = "registry.ollama.ai"
_DEFAULT_NAMESPACE = "library"
_MOST_MANIFEST_BYTES = 1 << 20
_MOST_MANIFESTS = 5_000
_LEVELS = 4
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def read_store(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of a store's models; files may be missing."""
    for n_read, name_parts in enumerate(_manifests(directory / "manifests")):
        if n_read >= _MOST_MANIFESTS:
            return
        digest = _model_digest(directory.joinpath("manifests", *name_parts))
        if digest:
            yield _short_name(name_parts), directory / "blobs" / f"sha256-{digest}"


def _manifests(store: Path) -> Iterator[tuple[str, ...]]:
    """Yield host, namespace, name and tag of each manifest, sorted.

    Linked directories are not followed.
    """
    for folder, folders, names in os.walk(store):
        levels = Path(folder).relative_to(store).parts
        if len(levels) < _LEVELS - 1:
            folders[:] = sorted(folders)
        else:
            folders[:] = []
        if len(levels) == _LEVELS - 1:
            yield from ((*levels, name) for name in sorted(names))


def _model_digest(manifest: Path) -> str:
    layers = read_json_object(manifest, _MOST_MANIFEST_BYTES).get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER:
            match = _DIGEST.fullmatch(str(layer.get("digest")))
            if match:
                return match[1]
            return ""
    return ""


def _short_name(name_parts: tuple[str, ...]) -> str:
    """Return Ollama's short name, without the default host and namespace."""
    host, namespace, name, tag = name_parts
    short = f"{name}:{tag}"
    if host == _DEFAULT_HOST:
        if namespace == _DEFAULT_NAMESPACE:
            return short
        return f"{namespace}/{short}"
    return f"{host}/{namespace}/{short}"


MOST_ENTRIES = 50_000
"""Limit on the files of one directory to search."""


@record
class StoredModel:
    """A model file, or the first file of a split model."""

    path: Path
    title: str
    """Title from the file name; it must be cleaned for the screen."""
    size_bytes: int
    """Size of all files."""
    mtime_ns: int
    """Modification time of the newest file."""
    place: str
    n_parts: int = 1
    """Number of files."""


_Parts = list[tuple[Path, os.stat_result]]
"""Files of a model with their status, the first one first."""


def find_files(places: Iterable[Place]) -> list[StoredModel]:
    """Return the models of all directories, each file once, in the order of directories and
    names.
    """
    models_by_file: dict[tuple[int, int], StoredModel] = {}
    for directory in places:
        if directory.is_ollama:
            models = _in_ollama(directory.path)
        else:
            models = _in_directory(directory)
        for title, files in sorted(models, key=lambda model: model[0].lower()):
            status = files[0][1]
            models_by_file.setdefault(
                (status.st_dev, status.st_ino), _found(title, files, directory.label)
            )
    return list(models_by_file.values())


def file_at(path: Path, label: str) -> StoredModel | None:
    """Return the model at a path; None if there is none."""
    status = _regular(path)
    if status is not None:
        return _found(path.stem, [(path, status)], label)
    return None


def _found(title: str, files: _Parts, label: str) -> StoredModel:
    sizes, times_ns = zip(
        *((status.st_size, status.st_mtime_ns) for _, status in files), strict=True
    )
    return StoredModel(files[0][0], title, sum(sizes), max(times_ns), label, len(files))


def _in_ollama(store: Path) -> Iterator[tuple[str, _Parts]]:
    for name, blob in read_store(store):
        status = _regular(blob)
        if status is not None:
            yield name, [(blob, status)]


def _in_directory(directory: Place) -> Iterator[tuple[str, _Parts]]:
    models: dict[tuple[Path, str, int], _Parts] = {}
    for path in _gguf_files(directory.path, directory.depth):
        status = _regular(path)
        if status is not None:
            split_name = part_name(path.name)
            if split_name:
                key = (path.parent, split_name.stem, split_name.count)
            else:
                key = (path.parent, path.name, 0)
            models.setdefault(key, []).append((path, status))
    for (_, name, count), files in models.items():
        yield (
            name if count else name[: -len(".gguf")] or name,
            sorted(files, key=lambda filet_name: filet_name[0].name),
        )


def _gguf_files(directory: Path, depth: int) -> Iterator[Path]:
    """Yield the files below a directory, each directory once, files before subdirectories."""
    seen: set[tuple[int, int]] = set()
    pending = [(directory, depth)]
    n_left = MOST_ENTRIES
    while pending and n_left > 0:
        folder, levels = pending.pop(0)
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    n_left -= 1
                    if n_left <= 0:
                        break
                    if _is_directory(entry):
                        if levels > 0 and not entry.name.startswith("."):
                            pending.append((Path(entry.path), levels - 1))
                    elif is_model_name(entry.name):
                        yield Path(entry.path)
        except OSError:
            continue  # missing or not readable


def is_model_name(name: str) -> bool:
    """Whether a file name is that of a model, and not of its encoder for pictures."""
    lower_name = name.lower()
    return lower_name.endswith(".gguf") and "mmproj" not in lower_name


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory; False for broken links and loops."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _regular(path: Path) -> os.stat_result | None:
    """Return the status of a regular file; None for other paths."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(status.st_mode):
        return status
    return None
