"""Sizes and types of models that suit a machine, from the data of ``config/model_sizes.toml``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.small_file import bundled_table
from app.text.record import record
from engine import KV_TYPES, MemoryNeeds
from engine.measure.fit import Fit, MachineMemory, MachineRates, ModelNeeds, fit

READING_TPS = 4.0
"""Tokens a second that keep up with a reader."""
USUAL_TYPE = "Q4_K_M"
"""Fewer bits than this cost more sense than they bring speed."""
CHAT_CONTEXT = 4096
"""Tokens of context that advice reckons with."""
_SMALLEST_PARAMETERS = 1e6
_MOST_PARAMETERS = 2e12


@record
class Shape:
    """A size of models, as one well-known model has it."""

    size: str
    parameters: float
    layers: int
    kv_elements: int
    embedding: float
    context: int


@record
class MemoryRow:
    """The models that suit a machine with this much memory."""

    gib: int
    system: float
    best: tuple[str, ...]


@record
class Suggestion:
    """One size that fits here, with its best type and how fast it would be."""

    size: str
    quantization: str
    file_bytes: int
    fit: Fit


@cache
def shapes() -> tuple[Shape, ...]:
    """Return the known sizes, the smallest first."""
    return tuple(Shape(**row) for row in bundled_table("model_sizes.toml")["shape"])


@cache
def bits_per_weight() -> Mapping[str, float]:
    """Return bits per weight by type, in the order of advice."""
    return dict(bundled_table("model_sizes.toml")["bits_per_weight"])


@cache
def memory_rows() -> tuple[MemoryRow, ...]:
    """Return the table by memory, the smallest first."""
    rows = bundled_table("model_sizes.toml")["memory"]
    return tuple(MemoryRow(row["gib"], row["system"], tuple(row["best"])) for row in rows)


def parameters_of(size: str) -> float:
    """Read a size as people write it: "8B", "0.5b", "135M". Raises Refusal: it is no size."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([bBmM])\s*", size)
    if match:
        value = float(match[1]) * (1e9 if match[2] in "bB" else 1e6)
    else:
        value = 0.0
    if not _SMALLEST_PARAMETERS <= value <= _MOST_PARAMETERS:
        raise Refusal(f"--size is {size!r}: write parameters as 8B or 135M", exit_codes.USAGE)
    return value


def needs_of_size(parameters: float, quantization: str, kv: str = "f16") -> ModelNeeds:
    """Estimate the needs of a size and type, by the nearest known shape.

    Raises Refusal: the type is not known.
    """
    from engine import QUANTS

    bits = bits_per_weight().get(quantization)
    if bits is None:
        known = ", ".join(bits_per_weight())
        raise Refusal(
            f"--type is {quantization!r}: nothing is known of it; known: {known}", exit_codes.USAGE
        )
    shape = min(shapes(), key=lambda one: abs(math.log(one.parameters / parameters)))
    scale = parameters / shape.parameters
    n_bytes = parameters * bits / 8
    inner = parameters - shape.embedding * scale
    # Most of a mix is made of one type: Q4_K of Q4_K_M.
    if quantization in QUANTS:
        kernel = quantization
    else:
        kernel = re.sub(r"_[SML]$", "", quantization)
    return ModelNeeds(
        name=f"a model of {parameters / 1e9:.3g}B",
        quantization=quantization,
        weights_bytes=int(n_bytes),
        read_bytes={kernel: int(inner * bits / 8)},
        products={kernel: int(inner)},
        memory=MemoryNeeds(int(shape.kv_elements * KV_TYPES[kv].bytes_per_element)),
        context_length=shape.context,
        n_layers=shape.layers,
        is_estimate=True,
    )


def suggestions(memory: MachineMemory, rates: MachineRates) -> list[Suggestion]:
    """Return, for every size that fits into the free memory, its best type here; the largest size
    first."""
    found = []
    for shape in reversed(shapes()):
        best = best_type(shape.parameters, memory, rates)
        if best is not None:
            trial = _try(shape.parameters, best, memory, rates)
            found.append(Suggestion(shape.size, best, trial.weights_bytes, trial))
    return found


def best_type(
    parameters: float,
    memory: MachineMemory,
    rates: MachineRates,
    among: Iterable[str] | None = None,
) -> str | None:
    """Return the type to take of a model of this size; None where none fits into the free memory.

    It is the usual one: most of the sense at the best speed. Where that does not fit or is not
    there, it is the one with most bits that still keeps up with a reader, else what fits.
    ``among``: types there are; None for four bits on.
    """
    if among is None:
        there = _four_bits_or_more()
    else:
        there = [one for one in bits_per_weight() if one in set(among)]
    trials = {one: _try(parameters, one, memory, rates) for one in there}
    fitting = [one for one, trial in trials.items() if trial.verdict == "yes"]
    fast = [one for one in fitting if (trials[one].decode_tps or 0) >= READING_TPS]
    usual = [one for one in fitting if one == USUAL_TYPE]
    return next(iter(usual or fast or fitting), None)


def better_quality(
    parameters: float, memory: MachineMemory, rates: MachineRates
) -> Suggestion | None:
    """Return the type with most bits that fits and keeps up with a reader, if it has more than the
    usual one."""
    for one in _four_bits_or_more():
        if bits_per_weight()[one] <= bits_per_weight()[USUAL_TYPE]:
            continue
        trial = _try(parameters, one, memory, rates)
        if trial.verdict == "yes" and (trial.decode_tps or 0) >= READING_TPS:
            return Suggestion("", one, trial.weights_bytes, trial)
    return None


def best_suggestion(found: Sequence[Suggestion]) -> Suggestion | None:
    """Return the largest size that keeps up with a reader, else the fastest."""
    fast = [one for one in found if (one.fit.decode_tps or 0) >= READING_TPS]
    if fast:
        return fast[0]
    if found:
        return found[-1]
    return None


def row_for(total_bytes: int) -> MemoryRow | None:
    """Return the row of the table that a machine belongs to; firmware and graphics keep a part of
    what is built in."""
    fitting = [row for row in memory_rows() if total_bytes >= 0.88 * row.gib * (1 << 30)]
    if fitting:
        return fitting[-1]
    return None


def _four_bits_or_more() -> list[str]:
    return [name for name, bits in bits_per_weight().items() if 4.0 < bits < 16]


def _try(parameters: float, quantization: str, memory: MachineMemory, rates: MachineRates) -> Fit:
    return fit(needs_of_size(parameters, quantization), memory, rates, CHAT_CONTEXT)
