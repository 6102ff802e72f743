"""Builds tiny adapters for tiny models, and the models that they make of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
from gguf import GGMLQuantizationType, quants

from tests.engine.tiny_gguf import TensorEntry, TinyGGUF

ALPHA = 8.0


def adapter(
    tiny: TinyGGUF, names: Sequence[str], rank: int = 4, quant: str = "F32", seed: int = 1
) -> TinyGGUF:
    """Describe an adapter, as llama.cpp writes them, that changes these tensors of a model a good
    deal."""
    rng = np.random.default_rng(seed)
    lora = TinyGGUF()
    lora.set("general.type", "adapter")
    lora.set("general.architecture", tiny.value("general.architecture"))
    lora.set("adapter.type", "lora")
    lora.set("adapter.lora.alpha", ALPHA)
    for name in names:
        n_cols, n_rows, *experts = tiny.tensor(name).dims
        first = [n_cols, rank, *experts]
        second = [rank, n_rows, *experts]
        if name.endswith("token_embd.weight"):
            first = [rank, n_rows]
            second = [rank, n_cols]
        for half, dims, size in (("a", first, 0.5 / n_cols**0.5), ("b", second, 0.1)):
            values = (rng.standard_normal(dims[::-1]) * size).astype(np.float32)
            ggml_type = (
                GGMLQuantizationType[quant] if dims[0] % 32 == 0 or quant in ("F16", "BF16") else 0
            )
            data = quants.quantize(values, GGMLQuantizationType(ggml_type)).tobytes()
            lora.tensors.append(TensorEntry(f"{name}.lora_{half}", dims, ggml_type, data))
    return lora


def factors(lora: TinyGGUF, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Both factors of an adapter: (..., rank, n_cols) and (..., n_rows, rank) float64."""
    halves = []
    for entry in (lora.tensor(f"{name}.lora_{half}") for half in "ab"):
        rows = np.frombuffer(entry.data, np.uint8).reshape(int(np.prod(entry.dims[1:])), -1)
        values = quants.dequantize(rows, GGMLQuantizationType(entry.ggml_type))
        halves.append(values.astype(np.float64).reshape(entry.dims[::-1]))
    first, second = halves
    return (second.T, first) if name.endswith("token_embd.weight") else (first, second)


def merged(tiny: TinyGGUF, lora: TinyGGUF, scale: float = 1.0) -> TinyGGUF:
    """The model of float32 that an adapter makes of another one."""
    result = deepcopy(tiny)
    for name in dict.fromkeys(str(entry.name).rpartition(".")[0] for entry in lora.tensors):
        tensor = result.tensor(name)
        (down, up) = factors(lora, name)
        change = up @ down * (scale * ALPHA / up.shape[-1])
        for scale_entry in [
            entry for entry in tiny.tensors if entry.name == name.removesuffix("weight") + "scale"
        ]:
            change /= (
                np.frombuffer(scale_entry.data, "<f4")
                .astype(np.float64)
                .reshape(-1, *(1,) * (change.ndim - 1))
            )
        tensor.data = (np.frombuffer(tensor.data, "<f4") + change.ravel()).astype("<f4").tobytes()
    return result
