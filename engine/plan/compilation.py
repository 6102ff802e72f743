"""Kernels found, compiled and counted, with a word to whoever waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from engine.kernels import CACHE_KERNELS, KERNELS
from engine.quants import load_quant

if TYPE_CHECKING:
    from engine.jit import Kernel


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


ENTRY_MODULES = (
    "engine.plan.interpreter",
    "engine.sampling.sampling_kernels",
    "engine.sampling.repetition_kernels",
)
"""Modules of the functions that Python calls; compiled together with the kernels, so that the first prompt waits for
nothing."""

ProgressCallback = Callable[[Progress], None]


def compile_kernels(names: Iterable[str], progress: ProgressCallback | None = None) -> dict[str, int]:
    """Compile kernels, or load them from the cache.

    Args:
        progress: told of what is compiled; loading takes a second in all and is not spoken of.

    Returns:
        name -> address of the machine code.
    """
    from engine import jit  # imports numba, which who only opens a model does without

    wanted = list(dict.fromkeys(names))
    addresses: dict[str, int] = {}
    steps: list[tuple[str, Callable[[], None]]] = [(name, partial(_find, name, addresses)) for name in wanted]
    steps += [(f"entries of {module.rsplit('.', 1)[1]}", partial(_warm_up, module)) for module in ENTRY_MODULES]
    told: set[str] = set()
    for done, (name, step) in enumerate(steps):

        def tell(done: int = done, name: str = name) -> None:
            if progress is not None and name not in told:
                told.add(name)
                progress(Progress("compile", name, done, len(steps)))

        with jit.telling(tell):
            step()
    if progress is not None and told:
        progress(Progress("compile", steps[-1][0], len(steps), len(steps)))
    return addresses


def find_kernel(name: str) -> Kernel:
    """Import the kernel a plan names: ``"rmsnorm"``, ``"matvec Q4_K"``."""
    if name in KERNELS:
        module, attribute = KERNELS[name].split(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    operation, _, kind = name.rpartition(" ")
    if operation in CACHE_KERNELS:
        module, attribute = f"engine.kernels.kv_{kind.replace('/', '_')}", CACHE_KERNELS[operation]
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    return getattr(load_quant(kind), operation)  # type: ignore[no-any-return]


def _find(name: str, addresses: dict[str, int]) -> None:
    addresses[name] = find_kernel(name).address


def _warm_up(module: str) -> None:
    import_module(module).warm_up()
