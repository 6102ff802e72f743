"""``python -m engine.build_ahead [LEVEL...]``: build the packs of machine code that
``engine.ahead`` links.

Every processor's code is built on any x86-64 or ARM64 machine, one process a core. What a pack
holds of the same sources is kept, so that a build that was stopped goes on, and a change of one
file builds little. ``--check`` only says what is missing or stale.
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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.ahead import CompiledKernel, Target

OPERATIONS = "embed", "matvec", "small_batch", "matmul"
WRITE_EVERY = 40
"""Kernels after which a pack is written, for a build that is stopped."""
HELPERS = {
    "memset", "memcpy", "memmove", "exp", "expf", "expm1", "log", "logf", "pow", "powf", "rint",
    "sin", "cos", "sincos",
    "tanh", "syscall", "madvise",
}  # fmt: skip
"""What kernels may call: functions of C that every process has."""


def places() -> list[str]:
    """Places of all kernels."""
    from engine.cache.kv_types import KV_TYPES
    from engine.kernels import CACHE_KERNELS, KERNELS
    from engine.kernels.entries import ENTRIES
    from engine.plan.compilation import place_of
    from engine.quants import QUANTS

    names = [*KERNELS, *(f"{operation} {kind}" for kind in KV_TYPES for operation in CACHE_KERNELS)]
    names += [f"{operation} {quant}" for quant in QUANTS for operation in OPERATIONS]
    return [*ENTRIES.values(), *map(place_of, names)]


def stale(pack: dict[str, CompiledKernel]) -> list[str]:
    """Places of the kernels that a pack lacks, or has of other sources."""
    from engine.ahead import source_hash

    return [
        place
        for place in places()
        if place not in pack or pack[place].source != source_hash(place.partition(":")[0])
    ]


class Pack:
    """One level's pack while it is built; ``name``: of the level; ``folder``: of the packs."""

    def __init__(self, name: str, folder: Path) -> None:
        from engine.ahead import TARGETS, read_pack

        self.name = name
        self.target = TARGETS[name]
        self.path = folder / f"{name}.pack"
        wanted = set(places())
        before = read_pack(self.path)
        self.kernels = {place: one for place, one in before.items() if place in wanted}
        self.left = stale(self.kernels)
        self.is_changed = len(before) > len(self.kernels)
        self._lock = threading.Lock()

    def build(self, part: list[str]) -> None:
        """Compile some of what is left, in a process of its own."""
        from engine.ahead import CompiledKernel

        for line in _worker(self.target, part):
            place, source, needs, code = json.loads(line)
            with self._lock:
                self.kernels[place] = CompiledKernel(source, tuple(needs), base64.b64decode(code))
                self.left.remove(place)
                self.is_changed = True
                if len(self.left) % WRITE_EVERY == 0:
                    self.write()

    def write(self) -> None:
        """Write what was built so far."""
        from engine.ahead import write_pack

        if self.is_changed:
            write_pack(self.path, self.kernels)
            self.is_changed = False
            print(f"{self.name}: {len(self.kernels)} kernels, {len(self.left)} left", flush=True)


def in_parts(left: list[str], n: int) -> list[list[str]]:
    """Deal kernels to processes by modules: those of one share what is inlined into them."""
    modules = list(dict.fromkeys(place.partition(":")[0] for place in left))
    parts = ({*modules[k::n]} for k in range(n))
    return [[place for place in left if place.partition(":")[0] in part] for part in parts]


def _worker(target: Target, part: list[str]) -> Iterator[str]:
    """Run a process that compiles for a target; yields its lines, one a kernel."""
    named = {
        "NUMBA_CPU_NAME": target.cpu,
        "NUMBA_CPU_FEATURES": ",".join(f"+{one}" for one in sorted(target.features)),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "engine.build_ahead", "--worker", target.triple, *part],
        env={**os.environ, **named, "JALOPY_CACHE_DIR": os.devnull}, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise SystemExit(f"compiling for {target.cpu} failed")


def work(triple: str, part: Iterable[str]) -> None:
    """Compile kernels for a processor that need not be this one, named by numba's variables; prints
    a line for each."""
    gc.set_threshold(50_000, 20, 100)  # with Python's default it is a quarter of the time
    aim_at(triple)
    from engine.ahead import source_hash

    for place in part:
        module, name = place.split(":")
        source = source_hash(module)  # before it is imported: what is edited meanwhile is stale
        code = object_code(place, getattr(import_module(module), name).function)
        needs = undefined_symbols(code)
        if not HELPERS.issuperset(needs):
            print(
                f"{place} calls {', '.join(sorted({*needs} - HELPERS))}: it may raise",
                file=sys.stderr,
                flush=True,
            )
            continue
        print(json.dumps([place, source, needs, base64.b64encode(code).decode()]), flush=True)


def aim_at(triple: str) -> None:
    """Make numba compile for a triple, and for AMX whatever the system gives; before ``engine`` is
    imported."""
    import llvmlite.binding as llvm

    from engine.machine import tiles

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: triple
    llvm.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(triple))
    tiles.may_be_used = lambda: True


def object_code(place: str, function: Any) -> bytes:
    """Compile a kernel as ``engine.jit`` does; returns an ELF object with nothing but its code,
    called as its place."""
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
    for one in (*module.functions, *module.global_variables):
        if not one.is_declaration and one.name != name:
            one.linkage = "internal"
    module.get_function(name).name = place
    passes = llvm.create_new_module_pass_manager()
    passes.add_ipsccp_pass()  # no kernel raises, and what tells Python of it falls away
    passes.add_simplify_cfg_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    code: bytes = machine.emit_object(module)
    return code


def undefined_symbols(code: bytes) -> list[str]:
    """Names that a 64-bit little-endian ELF object wants from the process.

    Source: the System V ABI, chapter 4.
    """
    at, size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, at + size * k) for k in range(count)]
    found = []
    for _, kind, _, _, begin, n_bytes, link, *_ in headers:
        if kind == 2:  # a table of symbols
            names = headers[link][4]
            for one in range(begin + 24, begin + n_bytes, 24):  # the first is empty
                name, _, _, section = struct.unpack_from("<IBBH", code, one)
                if section == 0:
                    found.append(code[names + name : code.index(b"\0", names + name)].decode())
    return sorted(found)


def main() -> int:
    """Build, or check; 0 if nothing is stale afterwards."""
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], sys.argv[3:])
        return 0
    from engine.ahead import PACKS, TARGETS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "levels", nargs="*", metavar="LEVEL", help=f"of {', '.join(TARGETS)}; all if none is named"
    )
    parser.add_argument("--check", action="store_true", help="say what is stale, and build nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    options = parser.parse_args()
    packs = [Pack(name, PACKS) for name in options.levels or TARGETS]
    if options.check:
        for one in packs:
            print(f"{one.name}: {len(one.left)} of {len(places())} kernels are missing or stale")
        return int(any(one.left for one in packs))
    started_s = time.monotonic()
    n_parts = -(-options.jobs // len(packs))
    parts = [(one, part) for one in packs for part in in_parts(one.left, n_parts)]
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = [pool.submit(one.build, part) for one, part in parts if part]
    finally:  # stopped by hand as well
        for one in packs:
            one.write()
    for run in runs:
        run.result()
    print(f"built in {time.monotonic() - started_s:.0f} s")
    return int(any(one.left for one in packs))


if __name__ == "__main__":
    raise SystemExit(main())
