"""Muon: momentum whose matrices are made orthogonal, so that a small model learns from fewer tokens.

Source: KellerJordan/Muon, the quintic iteration and its coefficients; here in float32, since
processors without bfloat16 emulate it slowly, and for all matrices of a shape at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Bring the singular values of matrices (count, rows, columns) near 1."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.mT if is_tall else x


_TOGETHER = 5
"""So many matrices of a shape are one piece of work."""


class Muon(torch.optim.Optimizer):
    """For matrices only; embeddings and norms want AdamW.

    Args:
        run: does pieces of work, one after the other as ``map`` or side by side as an executor's.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        run: Callable[..., Iterable[None]] = map,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._run = run

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update all matrices."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for param in group["params"]:
                by_shape[param.shape].append(param)
            pieces = [
                params[at : at + _TOGETHER] for params in by_shape.values() for at in range(0, len(params), _TOGETHER)
            ]
            list(self._run(partial(self._step, group=group), pieces))

    @torch.no_grad()
    def _step(self, params: list[Tensor], group: dict[str, Any]) -> None:
        directions = []
        for param in params:
            state = self.state[param]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(param)
            momentum = state["momentum"]
            momentum.lerp_(param.grad, 1 - group["momentum"])
            directions.append(param.grad.lerp(momentum, group["momentum"]))
        scale = max(1.0, params[0].shape[0] / params[0].shape[1]) ** 0.5
        for param, direction in zip(params, orthogonal(torch.stack(directions)), strict=True):
            param.mul_(1 - group["lr"] * group["weight_decay"])
            param.add_(direction, alpha=-group["lr"] * scale)
