"""Kernels found, compiled and counted, with a word to whoever waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

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


ENTRY_MODULES = ("engine.interpreter", "engine.sampling_kernels")
"""What Python itself calls; compiled together with the kernels, so that the first prompt waits for nothing."""

ProgressCallback = Callable[[Progress], None]


def compile_kernels(names: Iterable[str], progress: ProgressCallback | None = None) -> dict[str, int]:
    """Compile kernels, or load them from the cache.

    Returns:
        name -> address of the machine code.
    """
    wanted = list(dict.fromkeys(names))
    addresses: dict[str, int] = {}
    steps: list[tuple[str, Callable[[], None]]] = [(name, partial(_find, name, addresses)) for name in wanted]
    steps += [(f"entries of {module.rsplit('.', 1)[1]}", partial(_warm_up, module)) for module in ENTRY_MODULES]
    for done, (name, step) in enumerate(steps):
        if progress is not None:
            progress(Progress("compile", name, done, len(steps)))
        step()
    if progress is not None:
        progress(Progress("compile", steps[-1][0], len(steps), len(steps)))
    return addresses


def _find(name: str, addresses: dict[str, int]) -> None:
    addresses[name] = find_kernel(name).address


def _warm_up(module: str) -> None:
    import_module(module).warm_up()
