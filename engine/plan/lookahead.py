"""How decode asks memory for the weights it reads next: the choices, the default, and what was
measured to be best.

A choice is a number of bytes, a multiple of eight: ahead into the cache where it is positive, ahead
as data that is read once (non-temporal) where it is negative, 0 for no request. Its last bits are
flags (``records.LOOK_PAGES`` and others): ask also for the first lines of each page, 2 kB before it
is reached, since the processor's own prefetchers end with a page; ask into the first level of the
cache, not the second; walk four rows at a time that are far from each other, since these
prefetchers follow several places at once, each no further ahead than one alone. Which is best
depends on them; results never depend on it. ``engine.tuning.lookahead_trials`` measures; the file
is next to the machine code, so that other kernels begin again.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.kernels.records import LOOK_APART, LOOK_FLAGS, LOOK_NEAR, LOOK_PAGES
from engine.machine.regular_file import read_regular
from engine.machine.topology import cpu_name

USUAL = 8192 | LOOK_PAGES
"""Used until something was measured, but for ``usual``'s exception (figures in PERFORMANCE.md)."""
USUAL_OF_INTEL = 1024 | LOOK_NEAR | LOOK_PAGES | LOOK_APART
CHOICES = (
    0, LOOK_PAGES, 2048, 2048 | LOOK_PAGES, 8192, USUAL, 32768 | LOOK_PAGES, -2048, -4096,
    -4096 | LOOK_PAGES,
    1024 | LOOK_NEAR | LOOK_PAGES, USUAL_OF_INTEL, 2048 | LOOK_PAGES | LOOK_APART,
    2048 | LOOK_NEAR | LOOK_PAGES | LOOK_APART, 8192 | LOOK_PAGES | LOOK_APART,
    -4096 | LOOK_PAGES | LOOK_APART,
)  # fmt: skip
FILE_NAME = "lookahead.json"
_MOST_FILE_BYTES = 64 << 10


@dataclass(frozen=True)
class Reading:
    """Where decode reads a model's weights from, and with what.

    Attributes:
        is_cached: the last level of the cache holds all weights that a token reads.
        is_alone: one thread reads.
    """

    is_cached: bool = False
    is_alone: bool = False

    def key(self, quant: str) -> str:
        """Return the name under which a choice for a weight type is kept and shown, such as "Q8_0,
        cached"."""
        return quant + ", cached" * self.is_cached + ", one thread" * self.is_alone


FROM_MEMORY = Reading()


@dataclass(frozen=True)
class Lookahead:
    """A choice for one weight type on this machine, and its figures.

    Attributes:
        ahead: one of ``CHOICES``.
        gbps: weights read with it by the decode kernel, in GB/s.
        usual_gbps: the same with the default.
    """

    ahead: int
    gbps: float
    usual_gbps: float

    @property
    def way(self) -> str:
        """The choice in words, such as "prefetch 8 kB and pages"."""
        far = abs(self.ahead & ~LOOK_FLAGS)
        if far:
            way = f"prefetch {far / 1024:g} kB"
        else:
            way = ""
        if self.ahead < 0:
            way += ", non-temporal"
        if self.ahead & LOOK_NEAR:
            way += " into L1"
        if self.ahead & LOOK_PAGES:
            if way:
                way += " and pages"
            else:
                way += "prefetch pages"
        if self.ahead & LOOK_APART:
            way += ", four rows at once"
        return way or "no prefetch"


def ahead_of(quant: str, reading: Reading = FROM_MEMORY) -> int:
    """Return what decode uses for a weight type: what was measured, else the default."""
    found = remembered().get(reading.key(quant))
    if found is None:
        return usual()
    return found.ahead


def usual() -> int:
    """Return what is used until something was measured: Intel's processors read faster in four
    places."""
    if is_intel():
        return USUAL_OF_INTEL
    return USUAL


@cache
def is_intel() -> bool:
    """Whether the processor says that it is Intel's."""
    return "intel" in cpu_name().lower()


@cache
def remembered() -> dict[str, Lookahead]:
    """Return what was measured on this processor with these kernels by ``Reading.key``;
    ``remember`` changes it."""
    types = _kept().get(_processor())
    if not isinstance(types, dict):
        return {}
    return {key: found for key, one in types.items() if (found := _checked(one)) is not None}


def remember(key: str, found: Lookahead) -> None:
    """Use a choice from now on, in later processes too; a file that cannot be written costs only
    these."""
    remembered()[key] = found
    path = _path()
    if path is None:
        return
    content = {**_kept(), _processor(): {name: asdict(one) for name, one in remembered().items()}}
    own = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with suppress(OSError):
        try:
            own.write_text(json.dumps(content), encoding="ascii")
            os.replace(own, path)
        finally:
            own.unlink(missing_ok=True)


def _kept() -> dict[str, Any]:
    """Return what the file holds, unchecked, by processor: several may share a directory."""
    path = _path()
    try:
        if path is not None:
            raw = read_regular(path, _MOST_FILE_BYTES)
        else:
            raw = None
        content = json.loads(raw or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(content, dict):
        return content
    return {}


def _checked(values: Any) -> Lookahead | None:
    if not isinstance(values, dict) or set(values) != {"ahead", "gbps", "usual_gbps"}:
        return None
    figures = values["gbps"], values["usual_gbps"]
    if type(values["ahead"]) is not int or values["ahead"] not in CHOICES:
        return None
    if not all(isinstance(one, (int, float)) and 0 < one < 1e5 for one in figures):
        return None
    return Lookahead(values["ahead"], *map(float, figures))


def _path() -> Path | None:
    from engine.machine.code import CACHE_DIRECTORY

    if CACHE_DIRECTORY is not None:
        return CACHE_DIRECTORY / FILE_NAME
    return None


@cache
def _processor() -> str:
    """Return the processor's own name and LLVM's, which takes some processors for older ones."""
    from llvmlite.binding import get_host_cpu_name

    return ", ".join(filter(None, (cpu_name(), get_host_cpu_name())))
