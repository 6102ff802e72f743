"""Memory need and expected speed of a model, from its header and the machine's measured rates.

Only a file's header is read and numba is not imported, since the list of models does this for a
hundred files. ``engine.measure.speed_probe`` measures the rates.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.cache.kv_cache import kv_type_of, memory_needs
from engine.cache.layer_memory import MemoryNeeds
from engine.errors import GGUFError, UnsupportedQuantError
from engine.gguf.contents import GGUFFile, TensorInfo
from engine.gguf.read import read_gguf
from engine.gguf.title import model_title
from engine.machine import host
from engine.model import DEFAULT_CONTEXT
from engine.models import expected_tensors, read_config
from engine.quants import QUANTS
from engine.tokenizer.vocabulary import kind_of_vocabulary
from engine.weights.modes import RESERVE_BYTES
from engine.weights.weights import TensorSpec, Weights, checked_tensors, multiplied

MIN_CONTEXT = 256
"""Smallest context that is offered, in tokens."""
SYSTEM_BYTES = 1 << 30
"""Bytes that the operating system needs when all other programs are closed."""
DECODE_SHARE = 0.85
"""Assumed share of the memory bandwidth for types whose decode rate was not measured
(``PERFORMANCE.md``)."""
OTHER_DECODE_WORK = 1.06
"""Time of a token relative to its matrices alone; adds norms, short attention, sampling and
barriers."""
OTHER_PREFILL_WORK = 1.12
"""Time of a prompt token relative to its matrices alone."""
UNMEASURED_PREFILL_SHARE = 0.5
"""Assumed share of the fastest measured type's prefill rate, for types not measured (spread:
``PERFORMANCE.md``)."""
LAYER_S = 5e-5
"""Seconds per layer without its matrices: barriers and small operations. Matters only for small
models."""


@dataclass(frozen=True)
class ModelNeeds:
    """Requirements of one model, on any machine.

    Attributes:
        name: title of the model, untrusted.
        quantization: name of the mix of weight types, such as ``"Q4_K_M"``.
        weights_bytes: bytes of all tensors that are loaded into memory.
        read_bytes: bytes of weights that a decode step reads, by weight type.
        products: multiplications per prompt token, by weight type.
        memory: size of the layers' memory, for the requested KV type.
        context_length: trained context in tokens.
        n_layers: number of layers.
        is_estimate: whether it describes a model size, not a file.
        encoder_bytes: memory that the encoder of pictures needs, which is another file; 0 if there
            is none.
    """

    name: str
    quantization: str
    weights_bytes: int
    read_bytes: Mapping[str, int]
    products: Mapping[str, int]
    memory: MemoryNeeds
    context_length: int
    n_layers: int
    is_estimate: bool = False
    encoder_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that one decode step reads."""
        return sum(self.read_bytes.values())


@dataclass(frozen=True)
class MachineRates:
    """Measured rates of this machine with some number of threads.

    Attributes:
        read_gbps: read-only memory bandwidth in GB/s; None if not measured.
        decode_gbps: weights read by the decode kernels in GB/s, by weight type.
        prefill_gops: multiplications of the prefill kernels in 10^9 per second, by weight type.
    """

    read_gbps: float | None = None
    decode_gbps: Mapping[str, float] = field(default_factory=dict)
    prefill_gops: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MachineMemory:
    """Memory of the machine in bytes; ``available_bytes`` is available without swapping."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Fit:
    """Result for a model, a machine and a context.

    Attributes:
        verdict: ``"yes"``; ``"tight"`` if other programs must be closed; ``"no"``.
        n_ctx: context in tokens.
        weights_bytes: bytes of all tensors that are loaded into memory.
        kv_bytes: bytes of the KV cache for that context.
        own_bytes: bytes of the program and its buffers.
        encoder_bytes: bytes of the encoder of pictures; 0 if there is none.
        needed_bytes: bytes of weights, cache, program and encoder together.
        largest_ctx: largest context that fits into the available memory, in tokens; 0 if the
            weights do not fit.
        decode_tps: tokens per second with an empty context; None if unknown.
        decode_full_tps: tokens per second with a full context; None if unknown.
        prefill_tps: prompt tokens per second; None if unknown.
        is_measured: whether the rates of all the model's types were measured, not assumed.
    """

    verdict: str
    n_ctx: int
    weights_bytes: int
    kv_bytes: int
    own_bytes: int
    encoder_bytes: int
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
        EngineError: this engine cannot use the file; the message is one line.
    """
    gguf = read_gguf(path, keeps_strings=False)
    try:
        return needs_of(gguf, kv)
    finally:
        gguf.close()


def needs_of(gguf: GGUFFile, kv: str = "f16") -> ModelNeeds:
    """Return the needs of an open file; errors as in ``needs_of_file``."""
    config = read_config(gguf)
    matrices = _matrices(gguf)
    kind_of_vocabulary(gguf.metadata, gguf.shown_name)
    tensors = checked_tensors(gguf, config, expected_tensors(config))
    specs = multiplied(tensors, expected_tensors(config))
    return ModelNeeds(
        name=model_title(gguf.metadata, gguf.path),
        quantization=Weights(gguf, tensors).quantization_label(),
        weights_bytes=sum(
            tensor.size_bytes for name, tensor in tensors.items() if not specs[name].stays_in_file
        ),
        read_bytes=_read_bytes(tensors, specs),
        products=_products(
            {name: tensor for name, tensor in matrices.items() if name in tensors},
            specs,
            config.last_storing,
        ),
        memory=memory_needs(config, kv_type_of(kv, config)),
        context_length=config.context_length,
        n_layers=config.n_layers,
    )


def fit(
    needs: ModelNeeds, memory: MachineMemory, rates: MachineRates, n_ctx: int | None = None
) -> Fit:
    """Compare a model's needs with a machine.

    Args:
        n_ctx: context in tokens; None for ``default_context``.
    """
    n_ctx = n_ctx or default_context(needs)
    kv_bytes = needs.memory.bytes_for(n_ctx)
    needed = needs.weights_bytes + kv_bytes + RESERVE_BYTES + needs.encoder_bytes
    return Fit(
        verdict=_verdict(needed, memory),
        n_ctx=n_ctx,
        weights_bytes=needs.weights_bytes,
        kv_bytes=kv_bytes,
        own_bytes=RESERVE_BYTES,
        encoder_bytes=needs.encoder_bytes,
        needed_bytes=needed,
        largest_ctx=largest_context(needs, memory.available_bytes),
        decode_tps=_decode_tps(needs, rates, needs.memory.bytes_moved(0)),
        decode_full_tps=_decode_tps(needs, rates, needs.memory.bytes_moved(n_ctx)),
        prefill_tps=_prefill_tps(needs, rates),
        is_measured=not needs.is_estimate and set(needs.products) <= set(rates.decode_gbps),
    )


def default_context(needs: ModelNeeds) -> int:
    """Return the context that the engine chooses if memory allows, in tokens."""
    return min(needs.context_length, DEFAULT_CONTEXT)


def largest_context(needs: ModelNeeds, available_bytes: int) -> int:
    """Return the largest context that fits next to the weights, in tokens; 0 if below
    ``MIN_CONTEXT``."""
    free = available_bytes - needs.weights_bytes - needs.encoder_bytes - RESERVE_BYTES
    n_ctx = min(needs.context_length, needs.memory.largest_context(free))
    if n_ctx >= min(MIN_CONTEXT, needs.context_length):
        return n_ctx
    return 0


def machine_memory() -> MachineMemory:
    """Read this machine's total and available memory."""
    return MachineMemory(host.total_memory_bytes(), host.available_memory_bytes())


def _verdict(needed_bytes: int, memory: MachineMemory) -> str:
    if needed_bytes <= memory.available_bytes:
        return "yes"
    if needed_bytes <= memory.total_bytes - SYSTEM_BYTES:
        return "tight"
    return "no"


def _decode_tps(needs: ModelNeeds, rates: MachineRates, memory_bytes: int) -> float | None:
    read_gbps = rates.read_gbps
    seconds = 0.0
    for quant, n_bytes in needs.read_bytes.items():
        gbps = rates.decode_gbps.get(quant) or DECODE_SHARE * (read_gbps or 0.0)
        if not gbps:
            return None
        seconds += n_bytes / gbps / 1e9
    seconds = seconds * OTHER_DECODE_WORK + LAYER_S * needs.n_layers
    if memory_bytes:
        if not read_gbps:
            return None
        seconds += memory_bytes / (DECODE_SHARE * read_gbps) / 1e9
    if seconds > 0:
        return 1 / seconds
    return None


def _prefill_tps(needs: ModelNeeds, rates: MachineRates) -> float | None:
    if not rates.prefill_gops:
        return None
    assumed = UNMEASURED_PREFILL_SHARE * max(rates.prefill_gops.values())
    seconds = sum(
        n / (rates.prefill_gops.get(quant) or assumed) / 1e9 for quant, n in needs.products.items()
    )
    if seconds > 0:
        return 1 / (seconds * OTHER_PREFILL_WORK)
    return None


def _matrices(gguf: GGUFFile) -> dict[str, TensorInfo]:
    """Return the matrices by name; raises an error for types without kernels."""
    # Some writers pad shapes with ones: only the number of rows counts.
    matrices = {
        name: tensor for name, tensor in gguf.tensors.items() if math.prod(tensor.shape[:-1]) > 1
    }
    for tensor in matrices.values():
        if tensor.type_name not in QUANTS:
            raise UnsupportedQuantError(
                f"{gguf.shown_name}: tensor {tensor.name} is {tensor.type_name}; supported: "
                f"{', '.join(QUANTS)}"
            )
    if "token_embd.weight" not in matrices or not any(name.startswith("blk.") for name in matrices):
        raise GGUFError(
            f"{gguf.shown_name}: has no layers: it is a vocabulary or a part, not a model"
        )
    return matrices


def _read_bytes(
    tensors: Mapping[str, TensorInfo], specs: Mapping[str, TensorSpec]
) -> dict[str, int]:
    """Sum the bytes that a decode step reads, by type, without the rows looked up in embedding
    tables."""
    sums: Counter[str] = Counter()
    for name, tensor in tensors.items():
        if not specs[name].is_table:
            sums[tensor.type_name] += specs[name].bytes_read(tensor.size_bytes)
    return dict(sums)


def _products(
    matrices: Mapping[str, TensorInfo], specs: Mapping[str, TensorSpec], last_storing: int
) -> dict[str, int]:
    """Sum the multiplications of a token in a prompt, by type.

    The output head, and layers after the last that stores, are needed for the prompt's last token
    only.
    """
    sums: Counter[str] = Counter()
    for tensor in matrices.values():
        if tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) <= last_storing:
            sums[tensor.type_name] += round(math.prod(tensor.shape) * specs[tensor.name].read_share)
    return dict(sums)
