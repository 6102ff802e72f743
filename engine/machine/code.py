"""Machine code of this version: its name, where it is kept, and a word to those who wait for it."""

import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import platformdirs

from engine.machine.directories import is_safe_for_code, make_private

ENGINE = Path(__file__).parents[1]
COMPILED_SOURCES = (
    "jit.py", "plan/interpreter.py", "sampling/sampling_kernels.py",
    "sampling/candidate_kernels.py",
    "sampling/repetition_kernels.py", "machine/level.py", "simd", "quants", "kernels",
    "quantize/blocks.py",
    "quantize/lanes.py", "quantize/search.py", "quantize/superblocks.py", "quantize/table.py",
    "quantize/weights.py",
)  # fmt: skip


@cache
def read_source(file: Path) -> bytes:
    """Content of a source file, read once."""
    return file.read_bytes()


def _source_hash() -> str:
    """numba's cache sees only a function's own file, so every compiled source names the
    directory."""
    digest = hashlib.sha256()
    for name in COMPILED_SOURCES:
        place = ENGINE / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(str(file.relative_to(ENGINE)).encode() + b"\0" + read_source(file))
    for package in ("numba", "llvmlite"):
        digest.update(importlib.metadata.version(package).encode())
    digest.update(sys.version.encode())
    return digest.hexdigest()[:16]


VERSION = _source_hash()
"""Identifies the machine code, 16 hexadecimal digits: measurements taken with another version may
not hold."""


def _cache_directory() -> Path | None:
    """Find a private directory for machine code: numba stores pickles, and loading a foreign pickle
    runs its code.

    JALOPY_CACHE_DIR may be shared between users, so each user gets a directory of their own below
    it.
    """
    named = os.environ.get("JALOPY_CACHE_DIR")
    try:
        if named:
            home = Path(named).absolute() / _own_name()
        else:
            home = Path(platformdirs.user_cache_dir("jalopy"))
        directory = home / f"kernels-{VERSION}"
        make_private(directory)
    except (OSError, RuntimeError):
        return None
    if is_safe_for_code(directory) and os.access(directory, os.W_OK | os.X_OK):
        return directory
    return None


def _own_name() -> str:
    if hasattr(os, "geteuid"):
        return f"jalopy-{os.geteuid()}"
    return "jalopy"


CACHE_DIRECTORY = _cache_directory()
"""Directory that keeps machine code between starts; None if no private writable directory
exists."""

_told: list[Callable[[], None]] = [lambda: None]


def now_compiling() -> None:
    """Tell those who wait that something has to be compiled."""
    _told[-1]()


@contextmanager
def telling(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` when something inside has to be compiled, which takes about 100 times as long
    as loading it."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.pop()
