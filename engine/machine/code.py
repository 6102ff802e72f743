"""Machine code of this version: its name, its directory, and a report before something is
compiled."""

import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import platformdirs

from engine.machine.files import is_safe_for_code, make_private

ENGINE = Path(__file__).parents[1]
COMPILED_SOURCES = (
    "jit.py", "plan/interpreter.py", "sampling/sampling_kernels.py",
    "sampling/candidate_kernels.py",
    "sampling/repetition_kernels.py", "machine/level.py", "machine/processor.py", "simd", "quants",
    "kernels", "quantize/blocks.py",
    "quantize/lanes.py", "quantize/search.py", "quantize/superblocks.py", "quantize/table.py",
    "quantize/weights.py",
)  # fmt: skip


@cache
def read_source(file: Path) -> bytes:
    """Return the content of a source file, which is read once."""
    return file.read_bytes()


def _source_hash() -> str:
    """Return a hash of all compiled sources.

    numba's cache compares only a function's own file, so all sources are in the directory's name.
    """
    digest = hashlib.sha256()
    for name in COMPILED_SOURCES:
        path = ENGINE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(ENGINE)).encode() + b"\0" + read_source(file))
    for package in ("numba", "llvmlite"):
        digest.update(importlib.metadata.version(package).encode())
    digest.update(sys.version.encode())
    return digest.hexdigest()[:16]


VERSION = _source_hash()
"""Identifier of the machine code, 16 hexadecimal digits.

Measurements taken with another version may not hold.
"""


def _cache_directory() -> Path | None:
    """Find a private directory for machine code: numba stores pickles, and loading a foreign pickle
    runs its code.

    JALOPY_CACHE_DIR may be shared between users, so each user gets a directory of their own below
    it.
    """
    setting = os.environ.get("JALOPY_CACHE_DIR")
    try:
        if setting:
            home = Path(setting).absolute() / _own_name()
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
"""Directory of machine code between starts; None if no private writable directory exists."""

_reporters: list[Callable[[], None]] = [lambda: None]


def report_compiling() -> None:
    """Report that something has to be compiled."""
    _reporters[-1]()


@contextmanager
def reporting_compiling(report: Callable[[], None]) -> Iterator[None]:
    """Call ``report`` if something inside has to be compiled.

    That takes about 100 times as long as loading it.
    """
    _reporters.append(report)
    try:
        yield
    finally:
        _reporters.pop()
