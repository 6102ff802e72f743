"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): files that change a model's matrices.

A matrix W becomes W + scale * alpha / rank * up @ down. Keys, names and the order of a table's two
factors are those of llama.cpp's ``convert_lora_to_gguf.py`` and ``src/llama-adapter.cpp``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import (
    BrokenModelError,
    EngineError,
    GGUFError,
    MemoryPlanError,
    UnsupportedQuantError,
    printable,
)
from engine.gguf.hyperparameters import Hyperparameters
from engine.gguf.read import read_gguf
from engine.machine import host
from engine.machine.memory import Memory, shown_bytes
from engine.models import expected_tensors
from engine.plan.dequantise import dequantised
from engine.quants import QUANTS
from engine.saved_state.fingerprint import fingerprint_of
from engine.weights.modes import RESERVE_BYTES
from engine.weights.weights import FACTORS, LowRank, Tensor, TensorSpec, Weights

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.contents import GGUFFile

    Floats = np.ndarray[Any, np.dtype[np.float32]]

MAX_RANK = 4096
MAX_SCALE = 1000.0
_ALIGNMENT = 64
_FIRST, _SECOND = FACTORS
_LATENT_MATRICES = ("attn_kv_b.weight", "attn_k_b.weight", "attn_v_b.weight")
"""Matrices of latent attention, which adapters cannot change."""


@dataclass(frozen=True)
class Adapters:
    """Adapters of a model, ready for use.

    Attributes:
        low_ranks: sum of all adapters for each tensor, by its name.
        key: identifier of the files and scales.
        notices: warnings, one line each.
        bytes_per_token: bytes of the adapters that a decode step reads.
    """

    low_ranks: Mapping[str, LowRank]
    key: str
    notices: tuple[str, ...]
    bytes_per_token: int


@dataclass
class _Factors:
    """Factors of one tensor in float32.

    Attributes:
        down: (n_experts, rank, n_cols).
        up: (n_experts, n_rows, rank).
    """

    down: Floats
    up: Floats


def load_adapters(
    chosen: Sequence[tuple[str | os.PathLike[str], float]], config: ModelConfig, weights: Weights
) -> Adapters:
    """Read adapters with their scales and add them up.

    Raises:
        FileUnreadableError: a file cannot be read.
        GGUFError: a file is not an adapter of this model.
        UnsupportedQuantError: a factor has an unsupported type.
        BrokenModelError: a file is damaged.
        MemoryPlanError: the adapters do not fit into memory.
        EngineError: a scale is out of range.
    """
    factors_by_name: dict[str, list[_Factors]] = {}
    digest = hashlib.sha256()
    notices = []
    specs = expected_tensors(config)
    for path, scale in chosen:
        gguf = read_gguf(path, keeps_strings=False)
        try:
            reader = _AdapterReader(gguf, config, weights, specs, scale)
            for name, factors in reader.read().items():
                factors_by_name.setdefault(name, []).append(factors)
            digest.update(f"{fingerprint_of(gguf)} {scale!r} ".encode())
            notices += reader.notices
        finally:
            gguf.close()
    low_ranks = _joined(factors_by_name, specs)
    matrices = [(low, specs[name]) for name, low in low_ranks.items() if low.back is None]
    n_bytes = sum(
        spec.bytes_read(low.down.size_bytes + low.up.size_bytes) for low, spec in matrices
    )
    return Adapters(low_ranks, digest.hexdigest(), tuple(notices), n_bytes)


class _AdapterReader:
    """Reader of one file, which it checks completely before it reads any numbers."""

    def __init__(
        self,
        gguf: GGUFFile,
        config: ModelConfig,
        weights: Weights,
        specs: Mapping[str, TensorSpec],
        scale: float,
    ) -> None:
        self._gguf = gguf
        self._config = config
        self._weights = weights
        self._specs = specs
        self._keys = Hyperparameters(gguf.metadata, "adapter", gguf.shown_name)
        self._scale = scale
        self.notices: list[str] = []

    def _fail(self, problem: str, error: type[EngineError] = GGUFError) -> EngineError:
        return error(f"{self._gguf.shown_name}: {problem}")

    def read(self) -> dict[str, _Factors]:
        """Return the factors by the tensor's name, with the scale in ``up``."""
        alpha = self._check_header()
        names = self._names()
        for name in names:
            self._check(name)
        n_bytes = 4 * sum(int(np.prod(tensor.shape)) for tensor in self._gguf.tensors.values())
        available = host.available_memory_bytes() - RESERVE_BYTES
        if 2 * n_bytes > available:
            raise self._fail(
                (
                    f"needs {shown_bytes(2 * n_bytes)} of memory; "
                    f"{shown_bytes(max(0, available))} are free for it"
                ),
                MemoryPlanError,
            )
        infos = {
            half: self._gguf.tensors[half]
            for name in names
            for half in (name + _FIRST, name + _SECOND)
        }
        tensors = Weights(self._gguf, infos).tensors
        factors = {name: self._factors(name, tensors, alpha) for name in names}
        if not any(tensor.down.any() and tensor.up.any() for tensor in factors.values()):
            reason = "its factors are" if self._scale else "its scale is"
            self.notices.append(f"{self._gguf.shown_name}: has no effect: {reason} 0")
        return factors

    def _check_header(self) -> float:
        keys = self._keys
        metadata = self._gguf.metadata
        file_type, architecture = (
            metadata.get(f"general.{name}") for name in ("type", "architecture")
        )
        if file_type != "adapter":
            raise self._fail(
                f"general.type is '{printable(str(file_type))}', not 'adapter': this changes no "
                f"other model"
            )
        if (adapter_type := keys.word("type", "")) != "lora":
            raise self._fail(
                f"adapter.type is '{printable(adapter_type)}': only 'lora' is supported"
            )
        if architecture != self._config.architecture:
            raise self._fail(
                f"is for models of '{printable(str(architecture))}', not of "
                f"'{self._config.architecture}'"
            )
        if keys.raw("alora.invocation_tokens") is not None:
            raise self._fail(
                "begins in the midst of a text (activated LoRA), which is not supported"
            )
        if not (np.isfinite(self._scale) and abs(self._scale) <= MAX_SCALE):
            raise EngineError(
                f"the scale of {self._gguf.shown_name} is {self._scale}: must be at most "
                f"{MAX_SCALE:g}"
            )
        return keys.number("lora.alpha", 0.0)

    def _names(self) -> list[str]:
        """Return the names of the tensors that the adapter changes."""
        names: dict[str, None] = {}
        left_out = []
        for name in self._gguf.tensors:
            base, dot, half = name.rpartition(".")
            if dot + half in FACTORS:
                names[base] = None
            elif name.endswith("_norm.weight"):
                left_out.append(name)
            else:
                raise self._fail(
                    f"tensor {printable(name)} is no factor of an adapter (names end with "
                    f"{_FIRST}, {_SECOND})"
                )
        if not names:
            raise self._fail("has no tensors: it changes nothing")
        if left_out:
            self.notices.append(
                f"{self._gguf.shown_name}: no use is made of its {len(left_out)} norms"
            )
        return list(names)

    def _check(self, name: str) -> None:
        """Compare both factors with the tensor that they change."""
        spec = self._specs.get(name)
        model = self._weights.get(name)
        if spec is None or model is None:
            raise self._fail(
                f"changes {printable(name)}, which the model lacks (it is for another one)"
            )
        is_experts = "_exps." in name
        if spec.is_plain or name.endswith(_LATENT_MATRICES) or len(spec.shape) != 2 + is_experts:
            raise self._fail(f"changes {name}, which adapters cannot change here")
        for half in FACTORS:
            info = self._gguf.tensors.get(name + half)
            if info is None:
                raise self._fail(f"tensor {name}{half} is missing")
            if info.type_name not in QUANTS:
                raise self._fail(
                    f"tensor {info.name} is {info.type_name}, which is not supported",
                    UnsupportedQuantError,
                )
        first, second = (self._shape(name + half, len(spec.shape)) for half in (_FIRST, _SECOND))
        rank = second[-1]
        *experts, n_rows, n_cols = spec.shape
        expected = (*experts, rank, n_cols), (*experts, n_rows, rank)
        if spec.is_table:
            expected = (n_rows, rank), (n_cols, rank)
        if (first, second) != expected:
            shapes = " and ".join(" x ".join(map(str, shape)) for shape in (first, second))
            size = " x ".join(map(str, spec.shape))
            raise self._fail(
                f"factors of {shapes} do not fit {name} of {size} (it is for another model)"
            )
        if rank > MAX_RANK:
            raise self._fail(f"changes {name} with a rank of {rank}: must be at most {MAX_RANK}")

    def _shape(self, name: str, n_dims: int) -> tuple[int, ...]:
        """Return a tensor's shape with ``n_dims`` dimensions. Some writers omit or add leading
        ones."""
        shape = self._gguf.tensors[name].shape
        while len(shape) > n_dims and shape[0] == 1:
            shape = shape[1:]
        return (1,) * (n_dims - len(shape)) + shape

    def _factors(self, name: str, tensors: Mapping[str, Tensor], alpha: float) -> _Factors:
        spec = self._specs[name]
        halves = (name + _FIRST, name + _SECOND)
        shapes = [self._shape(half, len(spec.shape)) for half in halves]
        first, second = (
            self._values(tensors[half]).reshape(shape)
            for half, shape in zip(halves, shapes, strict=True)
        )
        if spec.is_table:  # its rows are the first factor's
            first, second = second.T, first
        rank = shapes[1][-1]
        scale: Any = self._scale * alpha / rank if alpha else self._scale
        scale_name = name.removesuffix("weight") + "scale"
        if self._weights.get(scale_name) is not None:  # it multiplies the whole product
            scale = scale / self._weights.float32(scale_name).reshape(
                -1, *(1,) * (len(spec.shape) - 1)
            )
        with np.errstate(all="ignore"):
            up = (second * scale).astype(np.float32)
        if not np.isfinite(up).all():
            raise self._fail(f"tensor {name}{_SECOND} holds too large numbers", BrokenModelError)
        n_experts = spec.shape[0] if len(spec.shape) == 3 else 1
        return _Factors(first.reshape(n_experts, rank, -1), up.reshape(n_experts, -1, rank))

    def _values(self, tensor: Tensor) -> Any:
        values = dequantised(tensor, np.arange(tensor.n_rows))
        if not np.isfinite(values).all():
            raise self._fail(
                f"tensor {tensor.name} holds NaN or infinity: it is damaged", BrokenModelError
            )
        return values


def _joined(
    factors_by_name: Mapping[str, Sequence[_Factors]], specs: Mapping[str, TensorSpec]
) -> dict[str, LowRank]:
    """Join the factors of all adapters for each tensor into one pair, whose rank is the sum of the
    ranks."""
    arrays: dict[str, list[tuple[str, np.ndarray[Any, Any]]]] = {}
    for name, factors in factors_by_name.items():
        down = np.concatenate([factor.down for factor in factors], axis=1)
        up = np.concatenate([factor.up for factor in factors], axis=2)
        if (rank := up.shape[-1]) > MAX_RANK:
            raise EngineError(
                f"the adapters change {name} with a rank of {rank} together: must be at most "
                f"{MAX_RANK}"
            )
        arrays[name] = [
            _with_type(down.reshape(-1, down.shape[-1])),
            _with_type(up.reshape(-1, rank)),
        ]
        if specs[name].is_table:
            arrays[name].append(_with_type(down[0].T))
    sizes = [
        -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
        for matrices in arrays.values()
        for _, values in matrices
    ]
    memory = Memory(sum(sizes))
    starts = accumulate(sizes, initial=0)
    low_ranks = {}
    for name, matrices in arrays.items():
        tensors = []
        for half, (quant, values) in zip((_FIRST, _SECOND, _FIRST), matrices, strict=False):
            start = next(starts)
            (n_rows, n_cols) = values.shape
            memory.bytes[start : start + values.nbytes] = values.view(np.uint8).ravel()
            row_bytes = values.nbytes // n_rows
            tensors.append(
                Tensor(
                    name + half,
                    quant,
                    n_rows,
                    n_cols,
                    row_bytes,
                    values.nbytes,
                    memory.address + start,
                )
            )
        rank = tensors[1].n_cols
        low_ranks[name] = LowRank(
            rank, tensors[0], tensors[1], tensors[2] if len(tensors) > 2 else None, memory
        )
    return low_ranks


def _with_type(values: Floats) -> tuple[str, np.ndarray[Any, Any]]:
    """Return a matrix with its type: in 16 bits if these represent all numbers exactly, else in
    float32."""
    values = np.ascontiguousarray(values)
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if (halves == values).all():
        return "F16", halves
    words = values.view(np.uint32)
    if (words & 0xFFFF).any():
        return "F32", values
    return "BF16", (words >> 16).astype(np.uint16)
