"""Compilation by numba: options, decorators and the cache of machine code.

There are two kinds of compiled function. A *kernel* is a C function with one signature, called by
its address. An *inner* function is inlined into kernels and never called on its own. Only this
module imports numba's decorators. Kernels that were built ahead (``engine.ahead``) are linked
without this module.
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

TUNING = ",+fast-dpwssd" if level.HAS_VNNI else ""
"""Options for LLVM. Without ``fast-dpwssd`` it writes two instructions instead of ``vpdpwssd``, whose
latency is longer, although no kernel waits for its result."""

SIGNATURE = types.void(types.intp, types.intp, types.intp)
numba.config.ENABLE_AVX = level.USES_AVX
if level.COMPILED_FEATURES:
    numba.config.CPU_FEATURES = level.COMPILED_FEATURES + TUNING
if CACHE_DIRECTORY is not None:
    # The environment variable alone has no effect if numba was imported before.
    numba.config.CACHE_DIR = str(CACHE_DIRECTORY)

CHECKSUM_BYTES = 4
DAMAGED_LOG = "damaged.log"
"""Name of the log, in the cache directory, of damaged files that were compiled again."""
_MAX_LOG_BYTES = 1 << 16


class DamagedCodeError(Exception):
    """A cache file does not match its checksum."""


class _CheckedCacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """Cache files of one function, each preceded by a checksum of its name and content.

    Without the check, damaged machine code would run: it crashes the process or computes wrong
    values.
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
    """Return the content of a cache file.

    Raises:
        OSError: the file cannot be read.
        DamagedCodeError: the checksum does not match; the damage is logged.
    """
    raw = path.read_bytes()
    content = raw[CHECKSUM_BYTES:]
    if raw[:CHECKSUM_BYTES] != _checksum_of(path.name, content):
        _log_damage(path)
        raise DamagedCodeError(path.name)
    return content


def _checksum_of(name: str, content: bytes) -> bytes:
    """Return the checksum of a cache file. It detects damage, not tampering."""
    return zlib.crc32(content, zlib.crc32(name.encode())).to_bytes(CHECKSUM_BYTES, "little")


def _log_damage(path: Path) -> None:
    log = (CACHE_DIRECTORY or path.parent) / DAMAGED_LOG
    with suppress(OSError):
        if not log.exists() or log.stat().st_size < _MAX_LOG_BYTES:
            with log.open("a") as file:
                file.write(
                    f"{time.strftime('%Y-%m-%d %H:%M:%S')} {path.name} was damaged: compiled "
                    f"again\n"
                )


caching.IndexDataCacheFile = _CheckedCacheFile

OPTIONS = {"error_model": "numpy", "boundscheck": False, "_nrt": False}
"""Options of numba: kernels raise nothing and own no memory."""


def _load_at_once(cache: Any, signature: Any, target: Any) -> Any:
    """Load machine code without reading numba's registries, which would take 0.2 s at each start.

    Compilation reads the registries when it needs them. Compiled code needs only the runtime.
    """
    rtsys.initialize(target)
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, target)


# ``_load_at_once`` follows numba 0.68; other versions use their own loader.
_load = _load_at_once if numba.version_info.short == (0, 68) else FunctionCache.load_overload
_save = FunctionCache.save_overload


def _load_or_nothing(cache: Any, signature: Any, target: Any) -> Any:
    """Load machine code; return None if it is missing or damaged, so that it is compiled."""
    overload = None
    try:
        overload = _load(cache, signature, target)
    except Exception:
        # The file is damaged, or another version of numba wrote it.
        with suppress(OSError):
            cache.flush()

    if overload is None:
        report_compiling()
    return overload


def _save_if_possible(cache: Any, signature: Any, compiled: Any) -> None:
    """Save machine code; if the disk is full, the next start compiles again."""
    with suppress(OSError):
        _save(cache, signature, compiled)


def _index_key(cache: Any, signature: Any, codegen: Any) -> Any:
    """Return the key of an entry in a function's cache files.

    The name of the directory stands for the sources. numba would add a hash of the variables that a
    function encloses, and for inner functions that hash differs between processes.
    """
    return signature, codegen.magic_tuple()


FunctionCache.load_overload = _load_or_nothing
FunctionCache.save_overload = _save_if_possible
FunctionCache._index_key = _index_key


class Kernel:
    """Operation ``void(op, thread, n_threads)``, linked or compiled when its address is first used.

    Args:
        function: Python source of the kernel. ``op`` is the address of the operation's record
            (``engine.kernels.records``). All arguments and addresses are int64.
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
        """C callback of numba, loaded from the cache or compiled.

        If the cache cannot be written, the kernel is compiled at each start.
        """
        declare = partial(cfunc, SIGNATURE, **OPTIONS)
        if CACHE_DIRECTORY is not None:
            with suppress(OSError, RuntimeError):
                return declare(cache=True)(self.function)
        report_compiling()
        return declare()(self.function)


def kernel(function: Callable[[int, int, int], None]) -> Kernel:
    """Declare a function of a module as a kernel. Its machine code is stored under its name.

    Raises:
        ValueError: the function was made by another function, so that its name is not unique; use
            ``kernels_of`` instead.
    """
    if "<locals>" in function.__qualname__:
        raise ValueError(
            f"{function.__qualname__} has no name of its own: declare it with kernels_of"
        )
    return Kernel(function)


def kernels_of(module: str, **functions: Callable[[int, int, int], None]) -> tuple[Kernel, ...]:
    """Declare kernels that a module makes by other functions, under the names given here."""
    for name, function in functions.items():
        function.__module__ = module
        function.__name__ = name
        function.__qualname__ = f"{module}.{name}"
    return tuple(map(Kernel, functions.values()))


class _Inlined(JITCodeLibrary):  # type: ignore[misc]
    """Unoptimised code of an inner function, which is optimised where it is inlined.

    numba would first optimise the function on its own and make machine code that nothing calls,
    which takes a quarter of the compile time.
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
        """Do nothing: there is no machine code."""


class _InliningCompiler(Compiler):  # type: ignore[misc]
    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, _Inlined(target.codegen(), "inlined"), *rest)


def inner(function: F) -> F:
    """Declare a function that is only inlined into kernels and entries."""
    # Wrappers would be compiled too, and nothing calls them.
    decorate = njit(
        forceinline=True,
        pipeline_class=_InliningCompiler,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        **OPTIONS,
    )
    inlined: F = decorate(function)
    return inlined
