"""Kernels linked, loaded or compiled, with reports of the progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.kernels import CACHE_KERNELS, KERNELS
from engine.kernels.entries import ENTRIES
from engine.machine.code import reporting_compiling
from engine.quants import QUANTS


@dataclass(frozen=True)
class Progress:
    """Progress of a slow part of opening a model.

    Attributes:
        stage: ``"compile"`` or ``"load"``.
        name: Name of the current kernel or file.
        done, total: Number of kernels, or bytes.
    """

    stage: str
    name: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]


def compile_kernels(
    names: Iterable[str], progress: ProgressCallback | None = None
) -> dict[str, int]:
    """Link kernels that were built ahead, load them from the cache, or compile them; entries, too.

    Args:
        progress: Called before a kernel is compiled; linking and loading take little time.

    Returns:
        name -> address of the machine code.
    """
    from engine.ahead import address_of  # imports llvmlite, which opening a model does not need

    paths = {name: place_of(name) for name in names}
    steps = {**paths, **ENTRIES}
    addresses: dict[str, int] = {}
    reported: list[str] = []
    for done, (name, path) in enumerate(steps.items()):

        def report(done: int = done, name: str = name) -> None:
            if progress is not None and reported[-1:] != [name]:
                reported.append(name)
                progress(Progress("compile", name, done, len(steps)))

        with reporting_compiling(report):
            addresses[name] = address_of(path)
    if progress is not None and reported:
        progress(Progress("compile", reported[-1], len(steps), len(steps)))
    return {name: addresses[name] for name in paths}


def place_of(name: str) -> str:
    """Return module and name of a kernel, given its name in plans: ``"rmsnorm"``, ``"matvec
    Q4_K"``."""
    if name in KERNELS:
        return KERNELS[name]
    operation, _, type_name = name.rpartition(" ")
    if operation in CACHE_KERNELS:
        return f"engine.kernels.kv_{type_name.replace('/', '_')}:{CACHE_KERNELS[operation]}"
    return f"{QUANTS[type_name]}:{operation}"
