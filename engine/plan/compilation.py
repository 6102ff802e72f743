"""Kernels found, linked or compiled, and counted, with a word to those who wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.kernels import CACHE_KERNELS, KERNELS
from engine.kernels.entries import ENTRIES
from engine.machine.code import telling
from engine.quants import QUANTS


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


def compile_kernels(
    names: Iterable[str], progress: ProgressCallback | None = None
) -> dict[str, int]:
    """Link kernels that were built ahead, load them from the cache, or compile them; the entries as
    well.

    Args:
        progress: told of what is compiled; linking and loading take little and are not spoken of.

    Returns:
        name -> address of the machine code.
    """
    from engine.ahead import address_of  # imports llvmlite, which opening a model does not need

    places = {name: place_of(name) for name in names}
    steps = {**places, **ENTRIES}
    addresses: dict[str, int] = {}
    told: list[str] = []
    for done, (name, place) in enumerate(steps.items()):

        def tell(done: int = done, name: str = name) -> None:
            if progress is not None and told[-1:] != [name]:
                told.append(name)
                progress(Progress("compile", name, done, len(steps)))

        with telling(tell):
            addresses[name] = address_of(place)
    if progress is not None and told:
        progress(Progress("compile", told[-1], len(steps), len(steps)))
    return {name: addresses[name] for name in places}


def place_of(name: str) -> str:
    """Module and name of the kernel a plan names: ``"rmsnorm"``, ``"matvec Q4_K"``."""
    if name in KERNELS:
        return KERNELS[name]
    operation, _, kind = name.rpartition(" ")
    if operation in CACHE_KERNELS:
        return f"engine.kernels.kv_{kind.replace('/', '_')}:{CACHE_KERNELS[operation]}"
    return f"{QUANTS[kind]}:{operation}"
