"""The numba policy, in one place: how functions compile and where the machine code is kept.

Three kinds of compiled function exist. A *kernel* is a C function of the one signature that plans call by address; an
*inner* function is inlined into kernels and never called on its own; an *entry* is what Python calls. Only this
module imports numba's decorators.
"""

import hashlib
import importlib.metadata
import os
import pickle
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

_HEEDED = {
    "NUMBA_CPU_NAME": r"[\w.-]+",
    "NUMBA_CPU_FEATURES": r"(?:[+-][\w.-]+(?:,[+-][\w.-]+)*)?",
    "NUMBA_ENABLE_AVX": "[01]",
}
"""Variables that choose a processor, and what makes sense of each."""


def _forget_debugging() -> None:
    """Drop numba's other variables: left over from debugging, they stop or slow the kernels, or spoil the screen."""
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        if name not in _HEEDED or not re.fullmatch(_HEEDED[name], os.environ[name]):
            del os.environ[name]
    os.environ["NUMBA_DISABLE_PERFORMANCE_WARNINGS"] = "1"


_forget_debugging()

import numba
from numba import cfunc, njit, types
from numba.core import caching
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.runtime.nrt import rtsys

from engine.machine.directories import is_safe_for_code, make_private

F = TypeVar("F", bound=Callable[..., Any])

_SIGNATURE = types.void(types.intp, types.intp, types.intp)
_COMPILED_SOURCES = (
    "jit.py", "plan/interpreter.py", "sampling/sampling_kernels.py", "sampling/candidate_kernels.py",
    "sampling/repetition_kernels.py", "simd", "quants", "kernels",
)  # fmt: skip


def _source_hash() -> str:
    """numba's cache sees only a function's own file, so every compiled source names the directory."""
    digest = hashlib.sha256()
    home = Path(__file__).parent
    for name in _COMPILED_SOURCES:
        place = home / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(str(file.relative_to(home)).encode() + b"\0" + file.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(importlib.metadata.version(package).encode())
    digest.update(sys.version.encode())
    return digest.hexdigest()[:16]


VERSION = _source_hash()
"""Identifies the machine code, 16 hexadecimal digits: measurements taken with another version may not hold."""


def _cache_directory() -> Path | None:
    """Find a private directory for machine code: numba stores pickles, and loading a foreign pickle runs its code.

    JALOPY_CACHE_DIR may be shared between users, so each user gets a directory of their own below it.
    """
    named = os.environ.get("JALOPY_CACHE_DIR")
    try:
        home = Path(named).absolute() / _own_name() if named else Path(platformdirs.user_cache_dir("jalopy"))
        directory = home / f"kernels-{VERSION}"
        make_private(directory)
    except (OSError, RuntimeError):
        return None
    return directory if is_safe_for_code(directory) and os.access(directory, os.W_OK | os.X_OK) else None


def _own_name() -> str:
    return f"jalopy-{os.geteuid()}" if hasattr(os, "geteuid") else "jalopy"


CACHE_DIRECTORY = _cache_directory()
"""Directory that keeps machine code between starts; None if no private writable directory exists."""

if CACHE_DIRECTORY is not None:
    # Set both: when a variable has changed since its import, numba reads all settings again and drops assigned ones.
    os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(CACHE_DIRECTORY)

CHECKSUM_BYTES = 4
DAMAGED_LOG = "damaged.log"
"""File in the cache directory that names what was found damaged there, and compiled again."""
_MOST_LOG_BYTES = 1 << 16


class DamagedCodeError(Exception):
    """A file of the cache is not what was written under its name."""


class _CheckedCacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """numba's files of one function, each after a checksum of its name and content.

    Damaged machine code would be linked and called: it ends the process, or computes something else.
    """

    def _load_index(self) -> dict[Any, str]:
        try:
            stamp, overloads = pickle.loads(read_checked(Path(self._index_path)))
        except FileNotFoundError:
            return {}
        return overloads if stamp == self._source_stamp else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._save_checked(self._index_path, self._dump((self._source_stamp, overloads)))

    def _load_data(self, name: str) -> Any:
        return pickle.loads(read_checked(Path(self._data_path(name))))

    def _save_data(self, name: str, data: Any) -> None:
        self._save_checked(self._data_path(name), self._dump(data))

    def _save_checked(self, path: str, content: bytes) -> None:
        with self._open_for_write(path) as file:
            file.write(_checksum_of(Path(path).name, content) + content)


def read_checked(path: Path) -> bytes:
    """Read a file of the cache.

    Raises:
        OSError: it cannot be read.
        DamagedCodeError: its checksum does not fit; the log says so.
    """
    raw = path.read_bytes()
    content = raw[CHECKSUM_BYTES:]
    if raw[:CHECKSUM_BYTES] != _checksum_of(path.name, content):
        _log_damage(path)
        raise DamagedCodeError(path.name)
    return content


def _checksum_of(name: str, content: bytes) -> bytes:
    """Return what stands before the content: a check against damage, not against whoever may write there."""
    return zlib.crc32(content, zlib.crc32(name.encode())).to_bytes(CHECKSUM_BYTES, "little")


def _log_damage(path: Path) -> None:
    log = (CACHE_DIRECTORY or path.parent) / DAMAGED_LOG
    with suppress(OSError):
        if not log.exists() or log.stat().st_size < _MOST_LOG_BYTES:
            with log.open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {path.name} was damaged: compiled again\n")


caching.IndexDataCacheFile = _CheckedCacheFile

_told: list[Callable[[], None]] = [lambda: None]
_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}


def _load_at_once(cache: Any, signature: Any, target: Any) -> Any:
    """Load machine code without reading numba's registries first, which takes 0.2 s of every start.

    The registries serve compilation, which reads them by itself; compiled code needs only the runtime.
    """
    rtsys.initialize(target)
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, target)


# ``_load_at_once`` follows numba 0.68; other versions use their own loader.
_load = _load_at_once if numba.version_info.short == (0, 68) else FunctionCache.load_overload
_save = FunctionCache.save_overload


def _load_or_nothing(cache: Any, signature: Any, target: Any) -> Any:
    """Load machine code; damaged files count as missing and are replaced by the next compilation."""
    found = None
    try:
        found = _load(cache, signature, target)
    except Exception:  # a damaged file, or one that another version wrote
        with suppress(OSError):
            cache.flush()
    if found is None:
        _told[-1]()
    return found


@contextmanager
def telling(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` when something inside has to be compiled, which takes about 100 times as long as loading it."""
    _told.append(tell)
    if CACHE_DIRECTORY is None:
        tell()
    try:
        yield
    finally:
        _told.pop()


def _save_if_possible(cache: Any, signature: Any, compiled: Any) -> None:
    """Store machine code; if the disk is full, the next start compiles again."""
    with suppress(OSError):
        _save(cache, signature, compiled)


FunctionCache.load_overload, FunctionCache.save_overload = _load_or_nothing, _save_if_possible


class Kernel:
    """A compiled operation: ``void(op, thread, n_threads)``, compiled when its address is first asked for.

    Args:
        function: Python source of the kernel; all three arguments and all addresses are int64.
    """

    def __init__(self, function: Callable[[int, int, int], None]) -> None:
        self.function = function
        self.name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}"
        self._compiled: Any = None

    @property
    def address(self) -> int:
        """Address of the machine code, compiling or loading it from the cache first."""
        if self._compiled is None:
            self._compiled = _compile(self.function)
        return int(self._compiled.address)


def _compile(function: Callable[..., None]) -> Any:
    return _kept(lambda **cache: cfunc(_SIGNATURE, error_model="numpy", boundscheck=False, **cache)(function))


def _kept(declare: Callable[..., Any]) -> Any:
    """Declare with the cache, or without it where numba finds no place to write any more."""
    if CACHE_DIRECTORY is not None:
        with suppress(OSError, RuntimeError):
            return declare(cache=True)
    return declare()


def kernel(function: Callable[[int, int, int], None]) -> Kernel:
    """Declare an operation of the plan."""
    return Kernel(function)


class _Inlined(JITCodeLibrary):  # type: ignore[misc]
    """Code of an inner function: kept as it was lowered, to be optimised where it is inlined.

    numba would optimise it on its own first and turn it into machine code that nothing calls: a quarter of the time in
    which kernels compile.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> "_Inlined":
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """There is no machine code whose environment could be set."""


class _InliningCompiler(Compiler):  # type: ignore[misc]
    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, _Inlined(target.codegen(), "inlined"), *rest)


def inner(function: F) -> F:
    """Declare a function that exists only inlined into kernels and entries."""
    without = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # each would be compiled too, and never called
    return njit(forceinline=True, pipeline_class=_InliningCompiler, **without, **_OPTIONS)(function)  # type: ignore[no-any-return]


def entry(function: F) -> F:
    """Declare a function that Python calls; it releases the GIL and is kept in the cache."""
    return _kept(lambda **cache: njit(**cache, **_OPTIONS)(function))  # type: ignore[no-any-return]
