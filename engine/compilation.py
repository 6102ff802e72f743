"""Kernels found, compiled and counted, with a word to whoever waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.kernels import find_kernel


@dataclass(frozen=True)
class Progress:
    """How far a slow part of opening a model is.

    Attributes:
        stage: ``"compile"`` or ``"load"``.
        name: of the kernel or file at work.
        done, total: kernels, or bytes.
    """

    stage: str
    name: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]


def compile_kernels(names: Iterable[str], progress: ProgressCallback | None = None) -> dict[str, int]:
    """Compile kernels, or load them from the cache.

    Returns:
        name -> address of the machine code.
    """
    wanted = list(dict.fromkeys(names))
    addresses = {}
    for done, name in enumerate(wanted):
        if progress is not None:
            progress(Progress("compile", name, done, len(wanted)))
        addresses[name] = find_kernel(name).address
    if progress is not None and wanted:
        progress(Progress("compile", wanted[-1], len(wanted), len(wanted)))
    return addresses
