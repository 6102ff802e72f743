"""Packs of machine code that was built ahead, and the choice of the one for this processor.

A pack, ``LEVEL.pack``, has the object files of all kernels for one level. It is a SHA-256 of the
remaining bytes, then, compressed (LZMA), the length of an index (4 bytes, little endian), the index
(JSON) and the object files. ``build_ahead`` writes packs. The index has a hash of each kernel's
sources, so a changed kernel is compiled, and the others are linked.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import sys
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from llvmlite import binding as llvm

from engine.machine import processor
from engine.machine.code import CACHE_DIRECTORY, COMPILED_SOURCES, ENGINE, read_source

PACKS = ENGINE / "packs"
"""Folder of the packs that come with the program."""
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


def has_packs() -> bool:
    """Return whether packs are made for this system."""
    triple: str = llvm.get_process_triple()
    return sys.platform == "linux" and (processor.HAS_ARM64 or triple.startswith("x86_64"))


def own_name() -> str | None:
    """Return the level that suits this processor: its kernels have the same forms and use no
    missing feature. None if there is no such level."""
    if not has_packs():
        return None
    own_traits = processor.traits(processor.FEATURES, processor.HAS_ARM64)
    for name, target in _runnable().items():
        if processor.traits(target.features, processor.HAS_ARM64) == own_traits:
            return name
    return None


def own_target() -> tuple[str, Target]:
    """Return the level that suits this processor, or else a level of its features alone.

    The name of the latter tells processors apart that share a directory.
    """
    name = own_name()
    if name is not None:
        return name, TARGETS[name]
    digest = hashlib.sha256(",".join(sorted(processor.FEATURES)).encode()).hexdigest()[:8]
    target = Target(llvm.get_process_triple(), processor.PROCESSOR, processor.FEATURES)
    return f"{processor.PROCESSOR}-{digest}", target


def _runnable() -> dict[str, Target]:
    """Return the levels whose features the processor has, the best first."""
    triple = ARM64 if processor.HAS_ARM64 else X86_64
    return {
        name: target
        for name, target in TARGETS.items()
        if target.triple == triple and target.features <= processor.FEATURES
    }


def usable_targets() -> dict[str, Target]:
    """Return the levels that this process may use: the processor's own, then the lower ones.

    If variables choose the processor, only its own.
    """
    name, target = own_target()
    if not has_packs() or processor.IS_CHOSEN:
        return {name: target}
    return {name: target} | _runnable()


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


def n_fresh(kernels: Mapping[str, CompiledKernel]) -> int:
    """Return the number of kernels whose sources have not changed."""
    return sum(
        kernel.source == source_hash(name.partition(":")[0]) for name, kernel in kernels.items()
    )


class PackChoice(NamedTuple):
    """Level that this process uses.

    Attributes:
        name: Name of the level.
        compiled_features: Features for kernels that are compiled, in LLVM's words.
        kernels: Machine code that was built ahead, some of it perhaps stale.
        is_best: Whether it is the processor's own level, and no kernel must be compiled.
        is_built_here: Whether the machine code was built on this machine, in idle time.
    """

    name: str
    compiled_features: str
    kernels: Mapping[str, CompiledKernel]
    is_best: bool
    is_built_here: bool


@cache
def choice() -> PackChoice:
    """Choose the best level whose pack is fresh; if there is none, the one with the most fresh
    kernels; if no kernel is fresh, the processor's own level.

    A process uses one level only, since forms of kernels and layouts of their data differ between
    levels.
    """
    levels = usable_targets()
    own = next(iter(levels))
    chosen = own
    kernels: Mapping[str, CompiledKernel] = {}
    most_fresh = 0
    is_complete = False
    is_built_here = False
    for name, folder in product(levels, pack_folders()):
        pack = read_pack(folder / f"{name}.pack")
        n = n_fresh(pack)
        if n > most_fresh:
            chosen = name
            kernels = pack
            most_fresh = n
            is_built_here = folder == CACHE_DIRECTORY
        is_complete = 0 < most_fresh == len(kernels)
        if is_complete:
            break

    text = processor.FEATURE_TEXT
    if chosen != own:
        text = processor.without(text, processor.FEATURES - levels[chosen].features)
    return PackChoice(chosen, text, kernels, chosen == own and is_complete, is_built_here)


def pack_folders() -> list[Path]:
    """Return the folders of packs: the repository's, and the one of packs that were built here in
    idle time."""
    if CACHE_DIRECTORY is None:
        return [PACKS]
    return [PACKS, CACHE_DIRECTORY]
