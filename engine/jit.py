"""The numba policy, in one place: how functions compile and where the machine code is kept.

Two kinds of compiled function exist. A *kernel* is a C function of one signature, called by
address; an *inner* function is inlined into kernels and never called on its own. Only this module
imports numba's decorators, and only what must be compiled imports this module: what was built ahead
(``engine.ahead``) is linked without it.
"""

import os
import pickle
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from engine import ahead
from engine.machine import level
from engine.machine.code import CACHE_DIRECTORY, report_compiling

if CACHE_DIRECTORY is not None:
    os.environ["NUMBA_CACHE_DIR"] = str(CACHE_DIRECTORY)

import numba
from numba import cfunc, njit, types
from numba.core import caching
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.runtime.nrt import rtsys

F = TypeVar("F", bound=Callable[..., Any])

SIGNATURE = types.void(types.intp, types.intp, types.intp)
numba.config.ENABLE_AVX = level.USES_AVX
if level.COMPILED_FEATURES:
    numba.config.CPU_FEATURES = level.COMPILED_FEATURES
if CACHE_DIRECTORY is not None:
    # Again, in case numba was imported before: when a variable has changed since, numba drops what
    # is assigned alone.
    numba.config.CACHE_DIR = str(CACHE_DIRECTORY)

CHECKSUM_BYTES = 4
DAMAGED_LOG = "damaged.log"
"""File in the cache directory that names what was found damaged there, and compiled again."""
_MOST_LOG_BYTES = 1 << 16


class DamagedCodeError(Exception):
    """A file of the cache is not what was written under its name."""


class _CheckedCacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """numba's files of one function, each after a checksum of its name and content.

    Damaged machine code would be linked and called: it ends the process, or computes something
    else.
    """

    def _load_index(self) -> dict[Any, str]:
        overloads: dict[Any, str]
        try:
            stamp, overloads = pickle.loads(read_checked(Path(self._index_path)))
        except FileNotFoundError:
            return {}
        if stamp == self._source_stamp:
            return overloads
        return {}

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
    """Return what is written before the content: a check against damage, not against anyone who may
    write there."""
    return zlib.crc32(content, zlib.crc32(name.encode())).to_bytes(CHECKSUM_BYTES, "little")


def _log_damage(path: Path) -> None:
    log = (CACHE_DIRECTORY or path.parent) / DAMAGED_LOG
    with suppress(OSError):
        if not log.exists() or log.stat().st_size < _MOST_LOG_BYTES:
            with log.open("a") as file:
                file.write(
                    f"{time.strftime('%Y-%m-%d %H:%M:%S')} {path.name} was damaged: compiled "
                    f"again\n"
                )


caching.IndexDataCacheFile = _CheckedCacheFile

OPTIONS = {"error_model": "numpy", "boundscheck": False, "_nrt": False}
"""No kernel raises, nor owns memory."""


def _load_at_once(cache: Any, signature: Any, target: Any) -> Any:
    """Load machine code without reading numba's registries first, which takes 0.2 s of every start.

    The registries serve compilation, which reads them by itself; compiled code needs only the
    runtime.
    """
    rtsys.initialize(target)
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, target)


# ``_load_at_once`` follows numba 0.68; other versions use their own loader.
_load = _load_at_once if numba.version_info.short == (0, 68) else FunctionCache.load_overload
_save = FunctionCache.save_overload


def _load_or_nothing(cache: Any, signature: Any, target: Any) -> Any:
    """Load machine code; damaged files count as missing and are replaced by the next
    compilation."""
    found = None
    try:
        found = _load(cache, signature, target)
    except Exception:  # a damaged file, or one that another version wrote
        with suppress(OSError):
            cache.flush()
    if found is None:
        report_compiling()
    return found


def _save_if_possible(cache: Any, signature: Any, compiled: Any) -> None:
    """Store machine code; if the disk is full, the next start compiles again."""
    with suppress(OSError):
        _save(cache, signature, compiled)


def _index_key(cache: Any, signature: Any, codegen: Any) -> Any:
    """What tells the entries of a function's files apart: the directory's name says of which
    sources they are.

    numba would add a hash of what a function encloses, which for inner functions is another one in
    each process.
    """
    return signature, codegen.magic_tuple()


FunctionCache.load_overload = _load_or_nothing
FunctionCache.save_overload = _save_if_possible
FunctionCache._index_key = _index_key


class Kernel:
    """A compiled operation: ``void(op, thread, n_threads)``, linked or compiled when its address is
    first asked for.

    Args:
        function: Python source of the kernel; ``op`` is the address of its record
            (``engine.kernels.records``), and all three arguments and all addresses are int64.
    """

    def __init__(self, function: Callable[[int, int, int], None]) -> None:
        self.function = function
        self.place = f"{function.__module__}:{function.__name__}"

    @property
    def address(self) -> int:
        """Address of the machine code."""
        return ahead.linked(self.place) or int(self.compiled.address)

    @cached_property
    def compiled(self) -> Any:
        """numba's C callback, compiled or loaded from the cache; without the cache where it finds
        no place to write."""
        declare = partial(cfunc, SIGNATURE, **OPTIONS)
        if CACHE_DIRECTORY is not None:
            with suppress(OSError, RuntimeError):
                return declare(cache=True)(self.function)
        report_compiling()
        return declare()(self.function)


def kernel(function: Callable[[int, int, int], None]) -> Kernel:
    """Declare a kernel: a function of a module, under whose name its machine code is found.

    Raises:
        ValueError: another function made this one, so its name may be that of several: see
            ``kernels_of``.
    """
    if "<locals>" in function.__qualname__:
        raise ValueError(
            f"{function.__qualname__} has no name of its own: declare it with kernels_of"
        )
    return Kernel(function)


def kernels_of(module: str, **functions: Callable[[int, int, int], None]) -> tuple[Kernel, ...]:
    """Declare kernels that were made for a module, which has each under the name given here."""
    for name, function in functions.items():
        function.__module__ = module
        function.__name__ = name
        function.__qualname__ = f"{module}.{name}"
    return tuple(map(Kernel, functions.values()))


class _Inlined(JITCodeLibrary):  # type: ignore[misc]
    """Code of an inner function: kept as it was lowered, to be optimised where it is inlined.

    numba would optimise it on its own first and turn it into machine code that nothing calls: a
    quarter of the time in which kernels compile.
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
    without = {
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }  # each would be compiled too, and never called
    return njit(forceinline=True, pipeline_class=_InliningCompiler, **without, **OPTIONS)(function)  # type: ignore[no-any-return]
