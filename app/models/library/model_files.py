"""Directories that may hold models, and their files: the user's, other programs' stores, the
current one, our own.

Reads a few small configuration files of those programs, Ollama's manifests, and no model. Nothing
here raises. Directories of others may hold anything: walks are bounded in depth and number, and
loops of links end. In Ollama's store the file ``manifests/HOST/NAMESPACE/NAME/TAG`` is JSON with
layers; the digest of the model's layer names the blob. A digest is checked before it becomes part
of a path (CVE-2024-37032).
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
"""In which models were opened, and which are looked into for that."""
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


def places(directories: Sequence[str] = ()) -> list[Place]:
    """Return every directory to look in, whether it exists or not, each once."""
    found: dict[str, Place] = {}
    for place in _all_places(directories):
        found.setdefault(os.path.realpath(place.path), place)
    return list(found.values())


def newly_listed_directory(model_path: Path | str, directories: Sequence[str]) -> str:
    """Say which folder is listed from now on since a model of it was opened; "" if it was, or holds
    no other."""
    folder = Path(os.path.abspath(model_path)).parent
    real = Path(os.path.realpath(folder))
    for place in places(directories):
        top = Path(os.path.realpath(place.path))
        if real == top or (place.depth and top in real.parents):
            return ""
    n_models = len(find_files([Place("", folder, depth=0)]))
    if n_models > 1:
        return (
            f"Found {n_models} models in {_label(folder, _expanded('~'))}; /models lists them now"
        )
    return ""


def download_directory(directories: Sequence[str]) -> Path | None:
    """Return where a downloaded model goes: the first directory of the settings, else one of our
    own."""
    given = next((path for path in map(_expanded, directories) if path is not None), None)
    data = paths.data_dir()
    return given or (data / "models" if data else None)


def hugging_face_home() -> Path | None:
    """Return the directory of Hugging Face's programs; it holds the token and the cache."""
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
    with contextlib.suppress(OSError):  # it was deleted
        yield Place("this directory", Path.cwd(), depth=0)
    if starter := starter_file():
        yield Place("comes with Jalopy", starter.parent, depth=0)


def _label(path: Path, home: Path | None) -> str:
    if home and home in path.parents:
        return f"~/{path.relative_to(home)}"
    return str(path)


def _opened_in() -> list[Path]:
    """Return the folders of models that were opened, the last one first: what is next to them is
    listed as well."""
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
    """Return the one line of the file that says where it lives."""
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
    """Return an absolute path; None for what is none."""
    if not text or "\0" in text:
        return None
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # a home that is not known
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
    """Yield the names that the store gives to models, each with its file; the file need not
    exist."""
    for n, parts in enumerate(_manifests(directory / "manifests")):
        if n >= _MOST_MANIFESTS:
            return
        digest = _model_digest(directory.joinpath("manifests", *parts))
        if digest:
            yield _short_name(parts), directory / "blobs" / f"sha256-{digest}"


def _manifests(store: Path) -> Iterator[tuple[str, ...]]:
    """Yield host, namespace, name and tag of each manifest in order; links to directories are not
    followed."""
    for place, folders, names in os.walk(store):
        above = Path(place).relative_to(store).parts
        if len(above) < _LEVELS - 1:
            folders[:] = sorted(folders)
        else:
            folders[:] = []
        if len(above) == _LEVELS - 1:
            yield from ((*above, name) for name in sorted(names))


def _model_digest(manifest: Path) -> str:
    layers = read_json_object(manifest, _MOST_MANIFEST_BYTES).get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER:
            match = _DIGEST.fullmatch(str(layer.get("digest")))
            if match:
                return match[1]
            return ""
    return ""


def _short_name(parts: tuple[str, ...]) -> str:
    """Write a name as Ollama does: the usual host and namespace go without saying."""
    host, namespace, name, tag = parts
    short = f"{name}:{tag}"
    if host == _DEFAULT_HOST:
        if namespace == _DEFAULT_NAMESPACE:
            return short
        return f"{namespace}/{short}"
    return f"{host}/{namespace}/{short}"


MOST_ENTRIES = 50_000
"""Of one place; what comes after them is not looked at."""


@record
class StoredModel:
    """A file that looks like a model, or the first of several that are one."""

    path: Path
    title: str
    """What to call it, as it is in names: to be cleaned before it is shown."""
    size_bytes: int
    """Of all parts that are there."""
    mtime_ns: int
    """Of the newest part."""
    place: str
    n_parts: int = 1
    """Files that were found; 1 for a whole model."""


_Parts = list[tuple[Path, os.stat_result]]
"""Files of one model, the first one first."""


def find_files(places: Iterable[Place]) -> list[StoredModel]:
    """Return the models of all places, each file once, in the order of the places and by name."""
    found: dict[tuple[int, int], StoredModel] = {}
    for place in places:
        if place.is_ollama:
            models = _in_ollama(place.path)
        else:
            models = _in_directory(place)
        for title, parts in sorted(models, key=lambda model: model[0].lower()):
            first = parts[0][1]
            found.setdefault((first.st_dev, first.st_ino), _found(title, parts, place.label))
    return list(found.values())


def file_at(path: Path, place: str) -> StoredModel | None:
    """Return the file at a path, wherever it is; None where there is none."""
    status = _regular(path)
    if status is not None:
        return _found(path.stem, [(path, status)], place)
    return None


def _found(title: str, parts: _Parts, place: str) -> StoredModel:
    sizes, times_ns = zip(
        *((status.st_size, status.st_mtime_ns) for _, status in parts), strict=True
    )
    return StoredModel(parts[0][0], title, sum(sizes), max(times_ns), place, len(parts))


def _in_ollama(store: Path) -> Iterator[tuple[str, _Parts]]:
    for name, blob in read_store(store):
        status = _regular(blob)
        if status is not None:
            yield name, [(blob, status)]


def _in_directory(place: Place) -> Iterator[tuple[str, _Parts]]:
    models: dict[tuple[Path, str, int], _Parts] = {}
    for path in _gguf_files(place.path, place.depth):
        status = _regular(path)
        if status is not None:
            part = part_name(path.name)
            if part:
                key = (path.parent, part.stem, part.count)
            else:
                key = (path.parent, path.name, 0)
            models.setdefault(key, []).append((path, status))
    for (_, name, count), parts in models.items():
        yield (
            name if count else name[: -len(".gguf")] or name,
            sorted(parts, key=lambda part: part[0].name),
        )


def _gguf_files(directory: Path, depth: int) -> Iterator[Path]:
    """Walk down, each directory once, files before directories."""
    seen: set[tuple[int, int]] = set()
    pending = [(directory, depth)]
    n_left = MOST_ENTRIES
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
    """Return the status of a file with something in it; a directory or a pipe is no model, whatever
    its name."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(status.st_mode):
        return status
    return None
