"""Machine code that was built ahead: the pack for this processor, checked and linked without numba.

A pack, ``engine/packs/LEVEL.pack``, has the object files of all kernels for one level. It is a
SHA-256 of the remaining bytes, then, compressed (LZMA), the length of an index (4 bytes, little
endian), the index (JSON) and the object files. ``build_ahead`` writes packs. The index has a hash
of each kernel's sources, so a changed kernel is compiled, and the others are linked.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import sys
import threading
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from llvmlite import binding as llvm

from engine.machine import level
from engine.machine.code import COMPILED_SOURCES, ENGINE, read_source

PACKS = ENGINE / "packs"
X86_64 = "x86_64-unknown-linux-gnu"
ARM64 = "aarch64-unknown-linux-gnu"

_V1 = frozenset(["64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"])
_V2 = _V1 | frozenset(["crc32", "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"])
_V3 = _V2 | frozenset(["avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "avx512vnni"])
_NEON = frozenset(["fp-armv8", "neon"])


class Target(NamedTuple):
    """Processors that a pack's code runs on.

    Attributes:
        triple: target triple of LLVM.
        cpu: LLVM's name of a processor with only these features.
        features: LLVM's names of the features that the code may use.
    """

    triple: str
    cpu: str
    features: frozenset[str]


TARGETS = {
    "amx": Target(X86_64, "x86-64-v4", _V4 | {"amx-int8", "amx-tile"}),
    "avx512": Target(X86_64, "x86-64-v4", _V4),
    "vnni": Target(X86_64, "x86-64-v3", _V3 | {"avxvnni"}),
    "avx2": Target(X86_64, "x86-64-v3", _V3),
    "f16c": Target(X86_64, "x86-64-v2", _V2 | {"avx", "f16c", "xsave"}),
    "avx": Target(X86_64, "x86-64-v2", _V2 | {"avx", "xsave"}),
    "sse4": Target(X86_64, "x86-64-v2", _V2),
    "sse2": Target(X86_64, "x86-64", _V1),
    "dotprod": Target(ARM64, "generic", _NEON | {"dotprod", "lse"}),
    "neon": Target(ARM64, "generic", _NEON),
}  # fmt: skip
"""Levels with packs, the best first. x86-64-v2 to v4 are defined in the x86-64 psABI."""


def target_name() -> str | None:
    """Return the name of the pack for this processor: its kernels have the same forms and use no
    missing feature. None if there is no such pack."""
    arm64 = level.HAS_ARM64
    if sys.platform != "linux" or not (arm64 or llvm.get_process_triple().startswith("x86_64")):
        return None
    for name, target in TARGETS.items():
        is_own = (target.triple == ARM64) == arm64 and target.features <= level.FEATURES
        if is_own and level.traits(target.features, arm64) == level.traits(level.FEATURES, arm64):
            return name
    return None


def sources_of(module: str) -> frozenset[Path]:
    """Return the compiled sources that a module's code comes from."""
    sources: set[Path] = set()
    waiting = [module]
    while waiting:
        file = _file_of(waiting.pop())
        if file is not None and file not in sources and _is_compiled(file):
            sources.add(file)
            waiting += _imports(file)
    return frozenset(sources)


@cache
def source_hash(module: str) -> str:
    """Return the hash of all sources of a module's kernels, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in sorted(sources_of(module)):
        digest.update(f"{file.relative_to(ENGINE).as_posix()}\0".encode() + _digest(file))
    return digest.hexdigest()[:32]


_IMPORT = re.compile(r"^\s*from (engine[\w.]*) import (.*)", re.MULTILINE)


@cache
def _digest(file: Path) -> bytes:
    return hashlib.sha256(read_source(file)).digest()


@cache
def _imports(file: Path) -> tuple[str, ...]:
    modules: list[str] = []
    for module, names in _IMPORT.findall(read_source(file).decode()):
        inner = [f"{module}.{name.split()[0]}" for name in names.split(",") if name.strip()]
        # a package's own names, or modules of it
        if all(map(_file_of, inner)):
            modules += inner
        else:
            modules += [module, *inner]
    return tuple(modules)


@cache
def _file_of(module: str) -> Path | None:
    kernel_name = ENGINE.joinpath(*module.split(".")[1:])
    return next(
        (
            file
            for file in (kernel_name.with_suffix(".py"), kernel_name / "__init__.py")
            if file.is_file()
        ),
        None,
    )


@cache
def _is_compiled(file: Path) -> bool:
    name = file.relative_to(ENGINE).as_posix()
    return any(name == source or name.startswith(f"{source}/") for source in COMPILED_SOURCES)


class CompiledKernel(NamedTuple):
    """Machine code of a kernel.

    Attributes:
        source: ``source_hash`` of the kernel's module.
        needs: names of the C functions that it calls, such as ``memset``.
        code: ELF object whose symbol is the kernel's name, such as ``engine.quants.q4_k:matvec``.
    """

    source: str
    needs: tuple[str, ...]
    code: bytes


def write_pack(path: Path, kernels: Mapping[str, CompiledKernel]) -> None:
    """Write a pack. The same kernels give the same bytes."""
    index = {}
    offset = 0
    for kernel_name, kernel in sorted(kernels.items()):
        index[kernel_name] = [kernel.source, list(kernel.needs), offset, len(kernel.code)]
        offset += len(kernel.code)
    head = json.dumps(index, separators=(",", ":")).encode()
    code = b"".join(kernel.code for _, kernel in sorted(kernels.items()))
    body = lzma.compress(
        len(head).to_bytes(4, "little") + head + code, preset=9 | lzma.PRESET_EXTREME
    )
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(hashlib.sha256(body).digest() + body)
    temporary.replace(path)


def read_pack(path: Path) -> dict[str, CompiledKernel]:
    """Read a pack; returns the kernels by name, empty if the pack is missing or damaged."""
    try:
        raw = path.read_bytes()
    except OSError:
        return {}
    if hashlib.sha256(raw[32:]).digest() != raw[:32]:
        return {}
    content = memoryview(lzma.decompress(raw[32:]))
    start = 4 + int.from_bytes(content[:4], "little")
    index: dict[str, Any] = json.loads(bytes(content[4:start]))
    return {
        kernel_name: CompiledKernel(
            source, tuple(needs), bytes(content[start + offset : start + offset + size])
        )
        for kernel_name, (source, needs, offset, size) in index.items()
    }


@cache
def own_pack() -> Mapping[str, CompiledKernel]:
    """Return the pack for this processor, empty if there is none."""
    name = target_name()
    if name is not None:
        return read_pack(PACKS / f"{name}.pack")
    return {}


@cache
def _linker() -> Any:
    """Return LLVM's linker. Linked code stays until the process ends."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.create_target_machine())


_addresses: dict[str, int | None] = {}
_linking = threading.Lock()


def linked(kernel_name: str) -> int | None:
    """Return the address of a kernel that was built ahead; None if it must be compiled. Any thread
    may call it.

    Args:
        kernel_name: module and function, such as ``engine.quants.q4_k:matvec``.
    """
    with _linking:
        if kernel_name not in _addresses:
            _addresses[kernel_name] = _link(kernel_name)
        return _addresses[kernel_name]


def _link(kernel_name: str) -> int | None:
    kernel = own_pack().get(kernel_name)
    if kernel is None or kernel.source != source_hash(kernel_name.partition(":")[0]):
        return None
    if not all(map(llvm.address_of_symbol, kernel.needs)):
        return None
    _linker().add_object_file(llvm.object_file.ObjectFileRef.from_data(kernel.code))
    _linker().finalize_object()
    return int(_linker().get_function_address(kernel_name)) or None


def address_of(kernel_name: str) -> int:
    """Return the address of a kernel, which is linked, or compiled by numba."""
    address = linked(kernel_name)
    if address is None:
        module, name = kernel_name.split(":")
        address = getattr(import_module(module), name).compiled.address
    return int(address)
