"""Sizes and types of models that suit a machine, from ``config/model_sizes.toml``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache

from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.small_file import bundled_table
from app.text.record import record
from engine import KV_TYPES, MemoryNeeds
from engine.measure.fit import Fit, MachineMemory, MachineRates, ModelNeeds, fit

READING_TPS = 4.0
"""Tokens per second at which writing keeps up with a reader."""
USUAL_TYPE = "Q4_K_M"
"""Type with the best balance: fewer bits cost more quality than they gain speed."""
CHAT_CONTEXT = 4096
"""Context for which advice is given, in tokens."""
_SMALLEST_PARAMETERS = 1e6
_MOST_PARAMETERS = 2e12


@record
class Shape:
    """A model size with the shape of a well-known model."""

    size: str
    parameters: float
    layers: int
    kv_elements: int
    embedding: float
    context: int


@record
class MemoryRow:
    """Models that suit a machine with this much memory."""

    gib: int
    system: float
    best: tuple[str, ...]


@record
class Suggestion:
    """A size that fits, with its best type and estimated speed."""

    size: str
    quantization: str
    file_bytes: int
    fit: Fit


@cache
def shapes() -> tuple[Shape, ...]:
    """Return the known sizes, smallest first."""
    return tuple(Shape(**row) for row in bundled_table("model_sizes.toml")["shape"])


@cache
def bits_per_weight() -> Mapping[str, float]:
    """Return bits per weight by type, in order of advice."""
    return dict(bundled_table("model_sizes.toml")["bits_per_weight"])


@cache
def memory_rows() -> tuple[MemoryRow, ...]:
    """Return the rows of the memory table, smallest first."""
    rows = bundled_table("model_sizes.toml")["memory"]
    return tuple(MemoryRow(row["gib"], row["system"], tuple(row["best"])) for row in rows)


def parameters_of(size: str) -> float:
    """Return the parameters of a size such as "8B", "0.5b" or "135M". Raises Refusal."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([bBmM])\s*", size)
    if match:
        value = float(match[1]) * (1e9 if match[2] in "bB" else 1e6)
    else:
        value = 0.0
    if not _SMALLEST_PARAMETERS <= value <= _MOST_PARAMETERS:
        raise Refusal(f"--size is {size!r}: write parameters as 8B or 135M", exit_codes.USAGE)
    return value


def needs_of_size(parameters: float, quantization: str, kv: str = "f16") -> ModelNeeds:
    """Estimate the needs of a size and type from the nearest known shape.

    Raises Refusal: the type is not known.
    """
    from engine import QUANTS

    bits = bits_per_weight().get(quantization)
    if bits is None:
        known_types = ", ".join(bits_per_weight())
        raise Refusal(
            f"--type is {quantization!r}: unknown; known types: {known_types}", exit_codes.USAGE
        )
    shape = min(
        shapes(), key=lambda known_shape: abs(math.log(known_shape.parameters / parameters))
    )
    scale = parameters / shape.parameters
    n_bytes = parameters * bits / 8
    inner = parameters - shape.embedding * scale
    # Most of a mixture has one type: Q4_K in Q4_K_M.
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
    """Return the best type of every size that fits the free memory, largest size first."""
    results = []
    for shape in reversed(shapes()):
        best = best_type(shape.parameters, memory, rates)
        if best is not None:
            trial = _try(shape.parameters, best, memory, rates)
            results.append(Suggestion(shape.size, best, trial.weights_bytes, trial))
    return results


def best_type(
    parameters: float,
    memory: MachineMemory,
    rates: MachineRates,
    among: Iterable[str] | None = None,
) -> str | None:
    """Return the best type for a model of this size; None if no type fits the free memory.

    The usual type is best. If it does not fit or is not available, take the type with most bits
    that keeps up with a reader, else any type that fits.

    Args:
        among: available types; None for all with four bits or more.
    """
    if among is None:
        available = _four_bits_or_more()
    else:
        available = [
            quantization for quantization in bits_per_weight() if quantization in set(among)
        ]
    trials = {
        quantization: _try(parameters, quantization, memory, rates) for quantization in available
    }
    fitting = [quantization for quantization, trial in trials.items() if trial.verdict == "yes"]
    fast = [
        quantization
        for quantization in fitting
        if (trials[quantization].decode_tps or 0) >= READING_TPS
    ]
    usual = [quantization for quantization in fitting if quantization == USUAL_TYPE]
    return next(iter(usual or fast or fitting), None)


def better_quality(
    parameters: float, memory: MachineMemory, rates: MachineRates
) -> Suggestion | None:
    """Return the type with most bits that fits and keeps up with a reader, if it beats the usual
    type.
    """
    for quantization in _four_bits_or_more():
        if bits_per_weight()[quantization] <= bits_per_weight()[USUAL_TYPE]:
            continue
        trial = _try(parameters, quantization, memory, rates)
        if trial.verdict == "yes" and (trial.decode_tps or 0) >= READING_TPS:
            return Suggestion("", quantization, trial.weights_bytes, trial)
    return None


def row_for(total_bytes: int) -> MemoryRow | None:
    """Return the table row of a machine; firmware and graphics may reserve some memory."""
    fitting = [row for row in memory_rows() if total_bytes >= 0.88 * row.gib * (1 << 30)]
    if fitting:
        return fitting[-1]
    return None


def _four_bits_or_more() -> list[str]:
    return [name for name, bits in bits_per_weight().items() if 4.0 < bits < 16]


def _try(parameters: float, quantization: str, memory: MachineMemory, rates: MachineRates) -> Fit:
    return fit(needs_of_size(parameters, quantization), memory, rates, CHAT_CONTEXT)
