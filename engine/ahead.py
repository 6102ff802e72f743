"""Machine code built ahead: found for this processor, checked, and linked without numba.

A pack, ``engine/packs/LEVEL.pack``, holds the object files of all kernels for one level: a SHA-256
of what follows, then, compressed (LZMA), the length of an index (4 bytes, little endian), the index
(JSON) and the objects. ``build_ahead`` writes packs. Each kernel is there with a hash of the
sources its code came from, so a changed kernel is compiled, and the others are linked.
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
    """What a pack's code is compiled for.

    Attributes:
        triple: of LLVM.
        cpu: LLVM's name of a processor that has no other features than these.
        features: all that the code may use, by LLVM's names.
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
"""Levels with packs, the best first. x86-64-v2 to v4 are those of the x86-64 psABI."""


def target_name() -> str | None:
    """Name of the pack for this processor: the one whose kernels are of the same forms and use
    nothing it lacks."""
    arm64 = level.HAS_ARM64
    if sys.platform != "linux" or not (arm64 or llvm.get_process_triple().startswith("x86_64")):
        return None
    for name, target in TARGETS.items():
        is_own = (target.triple == ARM64) == arm64 and target.features <= level.FEATURES
        if is_own and level.traits(target.features, arm64) == level.traits(level.FEATURES, arm64):
            return name
    return None


def sources_of(module: str) -> frozenset[Path]:
    """The compiled sources among the files that a module's code comes from, its own first."""
    found: set[Path] = set()
    left = [module]
    while left:
        file = _file_of(left.pop())
        if file is not None and file not in found and _is_compiled(file):
            found.add(file)
            left += _imports(file)
    return frozenset(found)


@cache
def source_hash(module: str) -> str:
    """Hash of all sources that a module's kernels come from, 32 hexadecimal digits."""
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
    found: list[str] = []
    for module, names in _IMPORT.findall(read_source(file).decode()):
        inner = [f"{module}.{name.split()[0]}" for name in names.split(",") if name.strip()]
        # a package's own names, or modules of it
        if all(map(_file_of, inner)):
            found += inner
        else:
            found += [module, *inner]
    return tuple(found)


@cache
def _file_of(module: str) -> Path | None:
    place = ENGINE.joinpath(*module.split(".")[1:])
    return next(
        (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None
    )


@cache
def _is_compiled(file: Path) -> bool:
    name = file.relative_to(ENGINE).as_posix()
    return any(name == one or name.startswith(f"{one}/") for one in COMPILED_SOURCES)


class CompiledKernel(NamedTuple):
    """A kernel's machine code.

    Attributes:
        source: ``source_hash`` of its module.
        needs: functions that it calls and the process must have, as ``memset``.
        code: ELF object whose symbol is the kernel's place, as ``engine.quants.q4_k:matvec``.
    """

    source: str
    needs: tuple[str, ...]
    code: bytes


def write_pack(path: Path, kernels: Mapping[str, CompiledKernel]) -> None:
    """Write a pack: the same bytes for the same kernels."""
    index = {}
    at = 0
    for place, one in sorted(kernels.items()):
        index[place] = [one.source, list(one.needs), at, len(one.code)]
        at += len(one.code)
    head = json.dumps(index, separators=(",", ":")).encode()
    code = b"".join(one.code for _, one in sorted(kernels.items()))
    body = lzma.compress(
        len(head).to_bytes(4, "little") + head + code, preset=9 | lzma.PRESET_EXTREME
    )
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(hashlib.sha256(body).digest() + body)
    temporary.replace(path)


def read_pack(path: Path) -> dict[str, CompiledKernel]:
    """Read a pack: place -> kernel; empty where it is missing or damaged."""
    try:
        raw = path.read_bytes()
    except OSError:
        return {}
    if hashlib.sha256(raw[32:]).digest() != raw[:32]:
        return {}
    content = memoryview(lzma.decompress(raw[32:]))
    begin = 4 + int.from_bytes(content[:4], "little")
    index: dict[str, Any] = json.loads(bytes(content[4:begin]))
    return {
        place: CompiledKernel(source, tuple(needs), bytes(content[begin + at : begin + at + size]))
        for place, (source, needs, at, size) in index.items()
    }


@cache
def own_pack() -> Mapping[str, CompiledKernel]:
    """The pack for this processor."""
    name = target_name()
    if name is not None:
        return read_pack(PACKS / f"{name}.pack")
    return {}


@cache
def _linker() -> Any:
    """LLVM's linker; what it has linked stays until the process ends."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.create_target_machine())


_addresses: dict[str, int | None] = {}
_linking = threading.Lock()


def linked(place: str) -> int | None:
    """Address of a kernel that was built ahead; None where it must be compiled. Any thread may ask.

    Args:
        place: module and name, as ``engine.quants.q4_k:matvec``.
    """
    with _linking:
        if place not in _addresses:
            _addresses[place] = _link(place)
        return _addresses[place]


def _link(place: str) -> int | None:
    one = own_pack().get(place)
    if one is None or one.source != source_hash(place.partition(":")[0]):
        return None
    if not all(map(llvm.address_of_symbol, one.needs)):
        return None
    _linker().add_object_file(llvm.object_file.ObjectFileRef.from_data(one.code))
    _linker().finalize_object()
    return int(_linker().get_function_address(place)) or None


def address_of(place: str) -> int:
    """Address of a kernel, linked, or compiled by numba, which is imported for that alone."""
    found = linked(place)
    if found is None:
        module, name = place.split(":")
        found = getattr(import_module(module), name).compiled.address
    return int(found)
