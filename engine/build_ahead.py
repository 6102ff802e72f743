"""``python -m engine.build_ahead [LEVEL...]``: build the packs of machine code that
``engine.ahead`` links.

The code of every processor is built on any x86-64 or ARM64 machine, one process per core. Kernels
of unchanged sources stay in a pack, so a build that was stopped resumes, and a change of one file
builds little. ``--check`` only reports what is missing or stale.
"""

from __future__ import annotations

import argparse
import base64
import gc
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.machine.packs import CompiledKernel, Target

OPERATIONS = "embed", "matvec", "small_batch", "matmul"
WRITE_EVERY = 40
"""Number of kernels after which a pack is written, in case the build is stopped."""
UNFINISHED = "unfinished"
"""Folder of packs that are built in idle time, until they are complete."""
LOWEST_PRIORITY = 19
MOST_IDLE_BYTES = 400 << 20
"""Memory with which a process that builds in idle time begins again: the compiler frees little."""
HELPERS = {
    "memset", "memcpy", "memmove", "exp", "expf", "expm1", "log", "logf", "pow", "powf", "rint",
    "sin", "cos", "sincos",
    "tanh", "syscall", "madvise",
}  # fmt: skip
"""Functions that kernels may call: C functions that every process has."""


def kernel_places() -> list[str]:
    """Return the places of all kernels."""
    from engine.cache.kv_types import KV_TYPES
    from engine.kernels import CACHE_KERNELS, KERNELS
    from engine.kernels.entries import ENTRIES
    from engine.plan.compilation import place_of
    from engine.quants import QUANTS

    names = [
        *KERNELS,
        *(f"{operation} {type_name}" for type_name in KV_TYPES for operation in CACHE_KERNELS),
    ]
    names += [f"{operation} {quant}" for quant in QUANTS for operation in OPERATIONS]
    return [*ENTRIES.values(), *map(place_of, names)]


def stale(pack: dict[str, CompiledKernel]) -> list[str]:
    """Return the places of the kernels that a pack lacks, or has from other sources."""
    from engine.machine.packs import source_hash

    return [
        name
        for name in kernel_places()
        if name not in pack or pack[name].source != source_hash(name.partition(":")[0])
    ]


class Pack:
    """Pack of one level while it is built.

    Args:
        name: Name of the level.
        target: Processors that the code runs on.
        folder: Folder of the packs.
    """

    def __init__(self, name: str, target: Target, folder: Path) -> None:
        from engine.machine.packs import read_pack

        self.name = name
        self.target = target
        self.path = folder / f"{name}.pack"
        expected = set(kernel_places())
        stored = read_pack(self.path)
        self.kernels = {name: kernel for name, kernel in stored.items() if name in expected}
        self.missing = stale(self.kernels)
        self.is_changed = len(stored) > len(self.kernels)
        self._lock = threading.Lock()

    def build(self, batch: list[str]) -> None:
        """Compile some of the missing kernels, in a process of its own."""
        from engine.machine.packs import CompiledKernel

        for line in _worker(self.target, batch):
            name, source, needs, code = json.loads(line)
            self.add(name, CompiledKernel(source, tuple(needs), base64.b64decode(code)))

    def add(self, name: str, kernel: CompiledKernel) -> None:
        """Add a kernel that was missing."""
        with self._lock:
            self.kernels[name] = kernel
            self.missing.remove(name)
            self.is_changed = True
            if len(self.missing) % WRITE_EVERY == 0:
                self.write()

    def write(self) -> None:
        """Write the kernels built so far."""
        from engine.machine.packs import write_pack

        if self.is_changed:
            write_pack(self.path, self.kernels)
            self.is_changed = False
            print(f"{self.name}: {len(self.kernels)} kernels, {len(self.missing)} left", flush=True)


def in_parts(missing: list[str], n: int) -> list[list[str]]:
    """Divide kernels among processes by modules: kernels of a module share inlined functions."""
    modules = list(dict.fromkeys(name.partition(":")[0] for name in missing))
    module_groups = ({*modules[k::n]} for k in range(n))
    return [
        [name for name in missing if name.partition(":")[0] in group] for group in module_groups
    ]


def environment_of(target: Target) -> dict[str, str]:
    """Return the environment of a process that compiles for a target."""
    return {
        **os.environ,
        "NUMBA_CPU_NAME": target.cpu,
        "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in sorted(target.features)),
        "JALOPY_CACHE_DIR": os.devnull,
    }


def _worker(target: Target, names: list[str]) -> Iterator[str]:
    """Run a process that compiles for a target; yield its lines, one per kernel."""
    with subprocess.Popen(
        [sys.executable, "-m", "engine.build_ahead", "--worker", target.triple, *names],
        env=environment_of(target), stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise SystemExit(f"compiling for {target.cpu} failed")


def work(triple: str, names: Iterable[str]) -> None:
    """Compile kernels for the processor in numba's variables; print a line for each."""
    gc.set_threshold(
        50_000, 20, 100
    )  # with Python's default, collection takes a quarter of the time
    aim_at(triple)
    for full_name in names:
        kernel = compile_kernel(full_name)
        if kernel is not None:
            code = base64.b64encode(kernel.code).decode()
            print(json.dumps([full_name, kernel.source, kernel.needs, code]), flush=True)


def compile_kernel(full_name: str) -> CompiledKernel | None:
    """Compile a kernel for the processor in numba's variables; return None if it may raise."""
    from engine.machine.packs import CompiledKernel, source_hash

    module, name = full_name.split(":")
    source = source_hash(module)  # before the import: a source edited meanwhile is stale
    code = object_code(full_name, getattr(import_module(module), name).function)
    needs = undefined_symbols(code)
    if not HELPERS.issuperset(needs):
        print(
            f"{full_name} calls {', '.join(sorted({*needs} - HELPERS))}: it may raise",
            file=sys.stderr,
            flush=True,
        )
        return None
    return CompiledKernel(source, tuple(needs), code)


def build_in_idle_time(folder: Path, places: Sequence[str] = ()) -> None:
    """Build the pack of this processor's level, one kernel for each line of standard input, and put
    it into a folder. What is done when the input ends is resumed by the next process.

    Args:
        places: Kernels to build; if empty, all that the shipped pack lacks or has from other
            sources.

    Raises:
        OSError: Another process builds there, or the pack cannot be written.
    """
    from engine.machine.packs import PACKS, own_target, read_pack

    os.nice(LOWEST_PRIORITY)
    gc.set_threshold(50_000, 20, 100)
    name, target = own_target()
    answers = sys.stdout
    with _only_builder(folder / UNFINISHED), redirect_stdout(sys.stderr):  # packs print progress
        pack = Pack(name, target, folder / UNFINISHED)
        if not places:
            shipped = read_pack(PACKS / f"{name}.pack")
            fresh = {*kernel_places()} - {*stale(shipped)}
            for place in fresh.intersection(pack.missing):
                pack.add(place, shipped[place])
        try:
            for place in [place for place in pack.missing if not places or place in places]:
                if not sys.stdin.readline():
                    return
                kernel = compile_kernel(place)
                if kernel is not None:
                    pack.add(place, kernel)
                print(place, file=answers, flush=True)
                if _resident_bytes() > MOST_IDLE_BYTES:
                    pack.write()
                    _begin_anew()
        finally:
            pack.write()
        pack.path.replace(folder / pack.path.name)


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    """Keep other processes from building in a folder. Raises OSError if one does."""
    import fcntl

    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _resident_bytes() -> int:
    n_pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return n_pages * os.sysconf("SC_PAGE_SIZE")


def _begin_anew() -> None:
    """Run this program from its start, with the same arguments, input and output."""
    os.execv(sys.executable, [sys.executable, "-m", "engine.build_ahead", *sys.argv[1:]])


def aim_at(triple: str) -> None:
    """Make numba compile for a triple, and for AMX whatever the system grants.

    Must run before ``engine`` is imported.
    """
    import llvmlite.binding as llvm

    from engine.machine import tiles

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: triple
    llvm.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(triple))
    tiles.may_be_used = lambda: True


def object_code(symbol: str, function: Any) -> bytes:
    """Compile a kernel as ``engine.jit`` does; return an ELF object with only its code, named
    ``symbol``."""
    import llvmlite.binding as llvm
    from numba.core.ccallback import CFunc
    from numba.core.compiler_lock import global_compiler_lock

    from engine.jit import OPTIONS, SIGNATURE

    with global_compiler_lock:
        callback: Any = CFunc(function, (SIGNATURE.args, SIGNATURE.return_type), {}, OPTIONS)
        compiled = callback._compile_uncached()
        library = compiled.library
        library._ensure_finalized()
    module = library._final_module.clone()
    machine = library._codegen._tm
    name = compiled.fndesc.llvm_cfunc_wrapper_name
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != name:
            value.linkage = "internal"
    module.get_function(name).name = symbol
    passes = llvm.create_new_module_pass_manager()
    passes.add_ipsccp_pass()  # kernels raise nothing: removes the reports to Python
    passes.add_simplify_cfg_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    code: bytes = machine.emit_object(module)
    return code


def undefined_symbols(code: bytes) -> list[str]:
    """Return the names that a 64-bit little-endian ELF object needs from the process.

    Source: the System V ABI, chapter 4.
    """
    (header_offset,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", code, header_offset + size * k) for k in range(count)
    ]
    names = []
    for _, section_type, _, _, begin, n_bytes, link, *_ in headers:
        if section_type == 2:  # symbol table
            strings = headers[link][4]
            for entry in range(begin + 24, begin + n_bytes, 24):  # the first entry is empty
                name, _, _, section = struct.unpack_from("<IBBH", code, entry)
                if section == 0:
                    names.append(code[strings + name : code.index(b"\0", strings + name)].decode())
    return sorted(names)


def main() -> int:
    """Build or check packs; return 0 if nothing is stale afterwards."""
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], sys.argv[3:])
        return 0
    if sys.argv[1:2] == ["--idle"]:
        build_in_idle_time(Path(sys.argv[2]), sys.argv[3:])
        return 0
    from engine.machine.packs import PACKS, TARGETS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "levels", nargs="*", metavar="LEVEL", help=f"of {', '.join(TARGETS)}; all if none is named"
    )
    parser.add_argument("--check", action="store_true", help="say what is stale, and build nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    options = parser.parse_args()
    packs = [Pack(name, TARGETS[name], PACKS) for name in options.levels or TARGETS]
    if options.check:
        for pack in packs:
            print(
                f"{pack.name}: {len(pack.missing)} of {len(kernel_places())} kernels "
                f"are missing or stale"
            )
        return int(any(pack.missing for pack in packs))
    started_s = time.monotonic()
    n_parts = -(-options.jobs // len(packs))
    jobs = [(pack, names) for pack in packs for names in in_parts(pack.missing, n_parts)]
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = [pool.submit(pack.build, names) for pack, names in jobs if names]
    finally:  # also when stopped by hand
        for pack in packs:
            pack.write()
    for run in runs:
        run.result()
    print(f"built in {time.monotonic() - started_s:.0f} s")
    return int(any(pack.missing for pack in packs))


if __name__ == "__main__":
    raise SystemExit(main())
