"""Builds tiny adapters for tiny models, and the models that they make of them."""

from __future__ import annotations

from copy import deepcopy

import numpy as np

from tests.engine.tiny_gguf import TensorEntry, TinyGGUF

ALPHA, RANK = 8.0, 4


def adapter(tiny: TinyGGUF, names: list[str], rank: int = RANK, seed: int = 1, alpha: float = ALPHA) -> TinyGGUF:
    """Describe an adapter, as llama.cpp writes them, that changes these tensors of a model a good deal."""
    rng, found = np.random.default_rng(seed), TinyGGUF()
    found.set("general.type", "adapter")
    found.set("general.architecture", tiny.value("general.architecture"))
    found.set("adapter.type", "lora")
    found.set("adapter.lora.alpha", alpha)
    for name in names:
        n_cols, n_rows, *experts = tiny.tensor(name).dims
        first, second = [n_cols, rank, *experts], [rank, n_rows, *experts]
        if name.endswith("token_embd.weight"):
            first, second = [rank, n_rows], [rank, n_cols]
        for half, dims, size in (("a", first, 0.5 / n_cols**0.5), ("b", second, 0.1)):
            values = rng.standard_normal(int(np.prod(dims))) * size
            found.tensors.append(TensorEntry(f"{name}.lora_{half}", dims, 0, values.astype("<f4").tobytes()))
    return found


def factors(found: TinyGGUF, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Both factors of an adapter of float32: (..., rank, n_cols) and (..., n_rows, rank)."""
    first, second = (
        np.frombuffer(one.data, "<f4").reshape(one.dims[::-1])
        for one in (found.tensor(f"{name}.lora_{half}") for half in "ab")
    )
    return (second.T, first) if name.endswith("token_embd.weight") else (first, second)


def merged(tiny: TinyGGUF, found: TinyGGUF, scale: float = 1.0) -> TinyGGUF:
    """The model of float32 that an adapter makes of another one."""
    whole = deepcopy(tiny)
    for name in dict.fromkeys(str(one.name).rpartition(".")[0] for one in found.tensors):
        tensor, (down, up) = whole.tensor(name), factors(found, name)
        values = np.frombuffer(tensor.data, "<f4").astype(np.float64)
        change = up.astype(np.float64) @ down.astype(np.float64) * (scale * ALPHA / up.shape[-1])
        own = name.removesuffix("weight") + "scale"
        for factor in [one for one in tiny.tensors if one.name == own]:
            own_scale = np.frombuffer(factor.data, "<f4").astype(np.float64)
            change /= own_scale.reshape(-1, *(1,) * (change.ndim - 1))
        tensor.data = (values + change.ravel()).astype("<f4").tobytes()
    return whole
