"""Prefetching of weights in decode: the choices, the default, and the measured best.

A choice is a number of bytes, a multiple of eight: positive to prefetch that far ahead into the
cache, negative for data that is read once (non-temporal), 0 for no prefetch. Its last bits are
flags of ``records``. ``LOOK_PAGES`` also prefetches the first lines of each page 2 kB before it is
reached, since the processor's own prefetchers end with a page. ``LOOK_NEAR`` prefetches into the
first level of the cache instead of the second. ``LOOK_APART`` computes four rows at a time that are
far from each other, since these prefetchers follow several streams at once, each no further ahead
than one alone.

The best choice depends on the processor; results never depend on it.
``engine.tuning.lookahead_trials`` measures. The file is next to the machine code, so other kernels
are measured again.
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
from engine.machine.files import read_regular
from engine.machine.topology import cpu_name

DEFAULT = 8192 | LOOK_PAGES
"""Choice until something is measured, on processors other than Intel's (see PERFORMANCE.md)."""
INTEL_DEFAULT = 1024 | LOOK_NEAR | LOOK_PAGES | LOOK_APART
CHOICES = (
    0, LOOK_PAGES, 2048, 2048 | LOOK_PAGES, 8192, DEFAULT, 32768 | LOOK_PAGES, -2048, -4096,
    -4096 | LOOK_PAGES,
    1024 | LOOK_NEAR | LOOK_PAGES, INTEL_DEFAULT, 2048 | LOOK_PAGES | LOOK_APART,
    2048 | LOOK_NEAR | LOOK_PAGES | LOOK_APART, 8192 | LOOK_PAGES | LOOK_APART,
    -4096 | LOOK_PAGES | LOOK_APART,
)  # fmt: skip
FILE_NAME = "lookahead.json"
_MOST_FILE_BYTES = 64 << 10


@dataclass(frozen=True)
class WeightAccess:
    """Source of the weights that decode reads, and whether one thread reads alone.

    Attributes:
        is_cached: The last level of the cache holds all weights that a token reads.
        is_alone: One thread reads.
    """

    is_cached: bool = False
    is_alone: bool = False

    def key(self, quant: str) -> str:
        """Return the name of a choice for a weight type, such as "Q8_0, cached"."""
        return quant + ", cached" * self.is_cached + ", one thread" * self.is_alone


FROM_MEMORY = WeightAccess()


@dataclass(frozen=True)
class Lookahead:
    """Choice for one weight type on this machine, and its measured speeds.

    Attributes:
        ahead: One of ``CHOICES``.
        gbps: Weights that the decode kernel reads with it, in GB/s.
        usual_gbps: Weights read with the default, in GB/s.
    """

    ahead: int
    gbps: float
    usual_gbps: float

    @property
    def words(self) -> str:
        """The choice in words, such as "prefetch 8 kB and pages"."""
        far = abs(self.ahead & ~LOOK_FLAGS)
        if far:
            words = f"prefetch {far / 1024:g} kB"
        else:
            words = ""
        if self.ahead < 0:
            words += ", non-temporal"
        if self.ahead & LOOK_NEAR:
            words += " into L1"
        if self.ahead & LOOK_PAGES:
            if words:
                words += " and pages"
            else:
                words += "prefetch pages"
        if self.ahead & LOOK_APART:
            words += ", four rows at once"
        return words or "no prefetch"


def ahead_of(quant: str, reading: WeightAccess = FROM_MEMORY) -> int:
    """Return the choice for a weight type: the measured one, else the default."""
    choice = measured_choices().get(reading.key(quant))
    if choice is None:
        return default_choice()
    return choice.ahead


def default_choice() -> int:
    """Return the choice until something is measured.

    Intel's processors read faster in four places.
    """
    if is_intel():
        return INTEL_DEFAULT
    return DEFAULT


@cache
def is_intel() -> bool:
    """Return whether the processor's name says that it is Intel's."""
    return "intel" in cpu_name().lower()


@cache
def measured_choices() -> dict[str, Lookahead]:
    """Return the choices measured on this processor with these kernels, by ``WeightAccess.key``.

    ``save_choice`` changes it.
    """
    types = _read_file().get(_processor())
    if not isinstance(types, dict):
        return {}
    return {key: choice for key, values in types.items() if (choice := _parse(values)) is not None}


def save_choice(key: str, choice: Lookahead) -> None:
    """Use a choice from now on, and in later processes.

    If the file cannot be written, later processes measure again.
    """
    measured_choices()[key] = choice
    path = _path()
    if path is None:
        return
    content = {
        **_read_file(),
        _processor(): {name: asdict(measured) for name, measured in measured_choices().items()},
    }
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with suppress(OSError):
        try:
            temporary.write_text(json.dumps(content), encoding="ascii")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _read_file() -> dict[str, Any]:
    """Return the content of the file, unchecked, by processor: several may share a directory."""
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


def _parse(values: Any) -> Lookahead | None:
    """Return a choice from a file; None if it is not valid."""
    if not isinstance(values, dict) or set(values) != {"ahead", "gbps", "usual_gbps"}:
        return None
    figures = values["gbps"], values["usual_gbps"]
    if type(values["ahead"]) is not int or values["ahead"] not in CHOICES:
        return None
    if not all(isinstance(figure, (int, float)) and 0 < figure < 1e5 for figure in figures):
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
