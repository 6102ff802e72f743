"""Will a model fit, and how fast would it be: arithmetic over what a model needs and what a machine was measured to do.

Reads no more of a file than its header, and never imports numba: a list of a hundred models is asked the same
questions. Measuring is ``engine.measure.speed_probe``'s business.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.cache.kv_cache import kv_type_of, memory_needs
from engine.cache.layer_memory import MemoryNeeds
from engine.errors import GGUFError, UnsupportedQuantError
from engine.gguf.read import GGUFFile, read_gguf
from engine.machine import host
from engine.model import DEFAULT_CONTEXT
from engine.models import expected_tensors, read_config
from engine.quants import QUANTS
from engine.tokenizer.vocabulary import kind_of_vocabulary
from engine.weights.modes import RESERVE_BYTES
from engine.weights.weights import TensorSpec, Weights, checked_tensors, multiplied

if TYPE_CHECKING:
    from engine.gguf.read import TensorInfo

SMALLEST_CONTEXT = 256
"""Tokens below which a conversation is none."""
SYSTEM_BYTES = 1 << 30
"""What a system keeps for itself when every other program is closed."""
DECODE_SHARE = 0.85
"""Of the memory's bandwidth, where a type's own rate was not measured: see ``PERFORMANCE.md`` for what types reach."""
OTHER_DECODE_WORK = 1.06
"""Time of a token over that of its matrices alone: norms, attention over few positions, sampling, barriers."""
OTHER_PREFILL_WORK = 1.12
"""The same for a prompt."""
UNMEASURED_PREFILL_SHARE = 0.5
"""Of the fastest type that was measured, for types that were not: see ``PERFORMANCE.md``, types differ so much."""
LAYER_S = 5e-5
"""Time of a layer that no matrix explains: its barriers and small operations. It decides only in small models."""


@dataclass(frozen=True)
class ModelNeeds:
    """What one model asks of any machine.

    Attributes:
        weights_bytes: of all tensors.
        read_bytes: weights that a decode step reads, by type.
        products: multiplications that a prompt token takes, by type of the weights.
        kv_bytes_per_position: of what layers remember, for the cache type that was asked for.
        context_length: positions the model was trained for.
        is_estimate: it stands for a size and not for a file.
        kv_fixed_bytes: of what layers remember whatever the context.
    """

    name: str
    quantization: str
    weights_bytes: int
    read_bytes: Mapping[str, int]
    products: Mapping[str, int]
    kv_bytes_per_position: int
    context_length: int
    n_layers: int
    is_estimate: bool = False
    kv_fixed_bytes: int = 0

    @property
    def memory(self) -> MemoryNeeds:
        """What the layers remember in."""
        return MemoryNeeds(self.kv_bytes_per_position, self.kv_fixed_bytes)

    @property
    def bytes_per_token(self) -> int:
        """Weights that one decode step reads."""
        return sum(self.read_bytes.values())


@dataclass(frozen=True)
class MachineRates:
    """What this machine was measured to do with a number of threads.

    Attributes:
        read_gbps: reading memory and nothing else; None where it was not measured.
        decode_gbps: weights read by the decode kernels, by type.
        prefill_gops: multiplications of the prefill kernels by type, in billions a second.
    """

    read_gbps: float | None = None
    decode_gbps: Mapping[str, float] = field(default_factory=dict)
    prefill_gops: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MachineMemory:
    """What memory there is, in bytes; ``available_bytes`` counts what can be had without pushing others out."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Fit:
    """The answer for one model, machine and context.

    Attributes:
        verdict: ``"yes"``; ``"tight"``, where other programs would have to be closed; ``"no"``.
        n_ctx: the context that was asked about.
        kv_bytes: of that context.
        own_bytes: of the program and its buffers.
        needed_bytes: weights, cache and program together.
        largest_ctx: that has room in the memory available now; 0 where not even the weights have.
        decode_tps, decode_full_tps: tokens a second with an empty and with a full context; None for unknown.
        prefill_tps: prompt tokens a second.
        is_measured: whether the rates are those of this machine's kernels for the model's types, not assumptions.
    """

    verdict: str
    n_ctx: int
    weights_bytes: int
    kv_bytes: int
    own_bytes: int
    needed_bytes: int
    largest_ctx: int
    decode_tps: float | None
    decode_full_tps: float | None
    prefill_tps: float | None
    is_measured: bool


def needs_of_file(path: str | os.PathLike[str], kv: str = "f16") -> ModelNeeds:
    """Read a model file's header.

    Args:
        kv: type of the KV cache.

    Raises:
        EngineError: the file cannot be used by this engine; one line that says why.
    """
    gguf = read_gguf(path, keeps_strings=False)
    try:
        return needs_of(gguf, kv)
    finally:
        gguf.close()


def needs_of(gguf: GGUFFile, kv: str = "f16") -> ModelNeeds:
    """Do what ``needs_of_file`` does for a file that is open already."""
    config = read_config(gguf)
    matrices = _matrices(gguf)
    kind_of_vocabulary(gguf.metadata, gguf.shown_name)
    tensors = checked_tensors(gguf, config, expected_tensors(config))
    specs = multiplied(tensors, expected_tensors(config))
    remembered = memory_needs(config, kv_type_of(kv, config))
    name = gguf.metadata.get("general.name")
    return ModelNeeds(
        name=name if isinstance(name, str) and name else gguf.path.stem,
        quantization=Weights(gguf, tensors).quantization_label(),
        weights_bytes=sum(tensor.size_bytes for tensor in gguf.tensors.values()),
        read_bytes=_read_bytes(tensors, specs),
        products=_products(matrices, specs),
        kv_bytes_per_position=remembered.position_bytes,
        context_length=config.context_length,
        n_layers=config.n_layers,
        kv_fixed_bytes=remembered.fixed_bytes,
    )


def fit(needs: ModelNeeds, memory: MachineMemory, rates: MachineRates, n_ctx: int | None = None) -> Fit:
    """Compare a model's needs with a machine.

    Args:
        n_ctx: tokens; None takes the context that the engine would choose where memory is no question.
    """
    n_ctx = n_ctx or default_context(needs)
    kv_bytes = needs.memory.bytes_for(n_ctx)
    needed = needs.weights_bytes + kv_bytes + RESERVE_BYTES
    return Fit(
        verdict=_verdict(needed, memory),
        n_ctx=n_ctx,
        weights_bytes=needs.weights_bytes,
        kv_bytes=kv_bytes,
        own_bytes=RESERVE_BYTES,
        needed_bytes=needed,
        largest_ctx=largest_context(needs, memory.available_bytes),
        decode_tps=_decode_tps(needs, rates, 0),
        decode_full_tps=_decode_tps(needs, rates, kv_bytes),
        prefill_tps=_prefill_tps(needs, rates),
        is_measured=not needs.is_estimate and set(needs.products) <= set(rates.decode_gbps),
    )


def default_context(needs: ModelNeeds) -> int:
    """Return what the engine chooses where memory is no question."""
    return min(needs.context_length, DEFAULT_CONTEXT)


def largest_context(needs: ModelNeeds, available_bytes: int) -> int:
    """Return the most tokens that have room beside the weights; 0 where it is fewer than make a conversation."""
    free = available_bytes - needs.weights_bytes - RESERVE_BYTES
    n_ctx = min(needs.context_length, needs.memory.largest_context(free))
    return n_ctx if n_ctx >= min(SMALLEST_CONTEXT, needs.context_length) else 0


def machine_memory() -> MachineMemory:
    """Read how much memory this machine has and could give now."""
    return MachineMemory(host.total_memory_bytes(), host.available_memory_bytes())


def _verdict(needed_bytes: int, memory: MachineMemory) -> str:
    if needed_bytes <= memory.available_bytes:
        return "yes"
    return "tight" if needed_bytes <= memory.total_bytes - SYSTEM_BYTES else "no"


def _decode_tps(needs: ModelNeeds, rates: MachineRates, kv_bytes: int) -> float | None:
    read_gbps = rates.read_gbps
    seconds = 0.0
    for quant, n_bytes in needs.read_bytes.items():
        gbps = rates.decode_gbps.get(quant) or (DECODE_SHARE * read_gbps if read_gbps else None)
        if not gbps:
            return None
        seconds += n_bytes / gbps / 1e9
    seconds = seconds * OTHER_DECODE_WORK + LAYER_S * needs.n_layers
    if kv_bytes:
        if not read_gbps:
            return None
        seconds += kv_bytes / (DECODE_SHARE * read_gbps) / 1e9
    return 1 / seconds if seconds > 0 else None


def _prefill_tps(needs: ModelNeeds, rates: MachineRates) -> float | None:
    if not rates.prefill_gops:
        return None
    assumed = UNMEASURED_PREFILL_SHARE * max(rates.prefill_gops.values())
    seconds = sum(n / (rates.prefill_gops.get(quant) or assumed) / 1e9 for quant, n in needs.products.items())
    return 1 / (seconds * OTHER_PREFILL_WORK) if seconds > 0 else None


def _matrices(gguf: GGUFFile) -> dict[str, TensorInfo]:
    """Return the matrices by name; refuse what the engine has no kernels for."""
    # Some writers pad shapes with ones: what counts is how many rows there are.
    found = {name: tensor for name, tensor in gguf.tensors.items() if math.prod(tensor.shape[:-1]) > 1}
    for tensor in found.values():
        if tensor.type_name not in QUANTS:
            raise UnsupportedQuantError(
                f"{gguf.shown_name}: tensor {tensor.name} is {tensor.type_name}; supported: {', '.join(QUANTS)}"
            )
    if "token_embd.weight" not in found or not any(name.startswith("blk.") for name in found):
        raise GGUFError(f"{gguf.shown_name}: has no layers: it is a vocabulary or a part, not a model")
    return found


def _read_bytes(tensors: Mapping[str, TensorInfo], specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Sum what a decode step reads, by type, without the single rows of tables that tokens are looked up in."""
    sums: Counter[str] = Counter()
    for name, tensor in tensors.items():
        if not specs[name].is_table:
            sums[tensor.type_name] += specs[name].bytes_read(tensor.size_bytes)
    return dict(sums)


def _products(matrices: Mapping[str, TensorInfo], specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Sum the layers' matrices: a prompt needs the output head for its last token only."""
    sums: Counter[str] = Counter()
    for tensor in matrices.values():
        if tensor.name.startswith("blk."):
            sums[tensor.type_name] += round(math.prod(tensor.shape) * specs[tensor.name].read_share)
    return dict(sums)
