"""Muon: momentum whose matrices are made orthogonal, so that a small model learns from fewer
tokens.

Source: KellerJordan/Muon, the quintic iteration and its coefficients; here in float32, since
processors without bfloat16 emulate it slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

_A = 3.4445
_B = -4.7750
_C = 2.0315


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """Bring the singular values of a matrix near 1."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.addmm(x, torch.addmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Optimiser of matrices; embeddings and norms need AdamW.

    Args:
        run: Function like ``map`` that runs the updates, in order or in parallel.
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
            dearest_first = sorted(group["params"], key=torch.numel, reverse=True)
            list(self._run(partial(self._step, group=group), dearest_first))

    @torch.no_grad()
    def _step(self, param: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        momentum = state["momentum"]
        momentum.lerp_(param.grad, 1 - group["momentum"])
        direction = orthogonal(param.grad.lerp(momentum, group["momentum"]))
        scale = max(1.0, param.shape[0] / param.shape[1]) ** 0.5
        param.mul_(1 - group["lr"] * group["weight_decay"])
        param.add_(direction, alpha=-group["lr"] * scale)
