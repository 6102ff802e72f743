"""Inputs that failed once, stored next to the tests that replay them."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

DIRECTORY = Path(__file__).parent / "seeds"
_PACKED = ".gz"
_MOST_PLAIN_BYTES = 2048


def kept(target: str, directory: Path = DIRECTORY) -> list[Path]:
    """Return the files of a target's inputs, in order of their names."""
    folder = directory / target
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def read_input(path: Path) -> bytes:
    """Return an input as the target received it."""
    raw = path.read_bytes()
    return gzip.decompress(raw) if path.suffix == _PACKED else raw


def keep(target: str, data: bytes, directory: Path = DIRECTORY) -> Path:
    """Write an input to a file named by its content; a large one is compressed."""
    folder = directory / target
    folder.mkdir(parents=True, exist_ok=True)
    is_packed = len(data) > _MOST_PLAIN_BYTES
    path = folder / (hashlib.sha256(data).hexdigest()[:12] + (_PACKED if is_packed else ".bin"))
    path.write_bytes(gzip.compress(data, mtime=0) if is_packed else data)
    return path
