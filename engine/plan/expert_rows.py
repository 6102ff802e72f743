"""Rows of a layer's experts: a choice for each token, groups of tokens by expert, and kernels that
run once for each expert.

A token has a slot for each of its experts, and the slots of an expert are side by side: the kernels
of dense layers treat them as the tokens of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.kernels import records
from engine.kernels.records import (
    COUNTER_BYTES,
    EACH_BYTES,
    EXPERT_BYTES,
    SCORES,
    WIDEST_TILE_TOKENS,
)
from engine.plan.buffers import SMALL_BATCH_TOKENS, Quantized
from engine.plan.operation import address_or_zero, float_bits
from engine.plan.plan import BLOCK

if TYPE_CHECKING:
    from engine.config import Experts
    from engine.plan.buffers import Activations, Buffers
    from engine.plan.operation import Operation
    from engine.plan.plan import Plan
    from engine.weights.weights import Tensor


class ExpertRows:
    """Writer of one layer's rows, from the router's products to the sum of the experts' results.

    Args:
        dim: Width of the inputs and results of experts.

    Attributes:
        inputs: Inputs of experts, a slot for each choice.
        gate, up: Hidden vectors of experts.
        results: Results of experts, in the memory of ``inputs``.
    """

    def __init__(self, plan: Plan, buffers: Buffers, experts: Experts, dim: int) -> None:
        self._plan = plan
        self._buffers = buffers
        self._experts = experts
        n_slots, small_batch = (
            self._n_slots(tokens) for tokens in (buffers.n_tokens, SMALL_BATCH_TOKENS)
        )
        self.inputs = self.results = buffers.vector("expert slots", dim, n_slots, small_batch)
        self.gate, self.up = (
            buffers.vector(f"expert {name}", experts.hidden_dim, n_slots, small_batch)
            for name in ("gate", "up")
        )
        n_bytes = 4 * buffers.n_tokens * experts.n_used
        self._ids, self._weights, self._slots = (
            buffers.table(f"experts' {name}", n_bytes).address
            for name in ("ids", "weights", "slots")
        )
        self._table = buffers.table(
            "experts in use", EXPERT_BYTES * (1 + experts.n_experts)
        ).address
        self._most = min(experts.n_experts, plan.max_tokens * experts.n_used)
        self._grouping: Operation | None = None
        self._products: list[Operation] = []

    def _n_slots(self, n_tokens: int) -> int:
        """Return the slots of ``n_tokens`` tokens; those of each expert are rounded up to a
        tile."""
        n = n_tokens * self._experts.n_used
        return n + (WIDEST_TILE_TOKENS - 1) * min(n, self._experts.n_experts)

    def choose(self, logits: Activations, bias: Tensor | None, factors: int = 0) -> None:
        """Choose each token's experts, and group tokens by them; a barrier must follow.

        Args:
            bias: Number of each expert that is added for the choice alone.
            factors: Address of the factor of each expert's result, or 0.
        """
        plan = self._plan
        experts = self._experts
        router = self._experts.router
        plan.add_row(
            "choose experts", records.CHOOSE, logits=logits.address,
            bias=address_or_zero(bias),
            n_experts=experts.n_experts, n_used=experts.n_used, score=SCORES.index(router.score),
            renormalised=int(router.renormalised), scale=float_bits(router.scale),
            n_groups=router.n_groups,
            n_groups_used=router.n_groups_used, ids=self._ids, weights=self._weights,
            scratch=plan.scratch[0], scratch_bytes=plan.scratch[1], factors=factors,
        )  # fmt: skip
        if not plan.is_decode:  # else the first thread does both
            plan.barrier()
        self._grouping = plan.add_row(
            "group tokens", records.GROUP, ids=self._ids, n_experts=experts.n_experts,
            n_used=experts.n_used,
            slots=self._slots, table=self._table,
            pad=WIDEST_TILE_TOKENS if plan.batch == BLOCK else 1,
            scratch=self._buffers.table("experts' counts", 8 * experts.n_experts).address,
        )  # fmt: skip

    def prefetch(self, *weights: Tensor) -> None:
        """Request the chosen experts' part of these matrices of all experts."""
        n = self._experts.n_experts
        values = np.array(
            [(weight.address, weight.size_bytes // n) for weight in weights], np.int64
        )
        slabs = self._buffers.table(f"slabs {values.ravel().tolist()}", values.nbytes)
        slabs.array(np.int64, values.shape)[:] = values
        self._plan.add_row(
            "prefetch experts",
            records.PREFETCH,
            table=self._table,
            slabs=slabs.address,
            n_slabs=len(values),
        )

    def spread(self, x: Activations) -> Activations:
        """Copy tokens to their slots, and return the slots.

        In decode all experts read the only token.
        """
        if self._plan.is_decode:
            return x
        self._plan.add_row(
            "spread tokens", records.SPREAD, x=x.address, slots=self._slots,
            n_used=self._experts.n_used,
            out=self.inputs.address, dim=x.n,
        )  # fmt: skip
        return self.inputs

    def quantize(self, x: Activations, *readers: Tensor) -> None:
        """Quantise x as ``Plan.quantize`` does: one token, or all slots."""
        first = len(self._plan.operations)
        self._plan.quantize(x, *readers)
        for operation in self._plan.operations[first:] if self._has_slots(x) else []:
            form = operation.kernel.removeprefix("quantize ")
            self._run_for_each(operation, {"x": (0, 4 * x.n, 0), **self._form_patches(x, form)})

    def matmul(
        self,
        weights: Tensor,
        first: int,
        n_rows: int,
        x: Activations,
        out: Activations,
        bias: Tensor | None,
    ) -> None:
        """Compute out = weights @ x of each expert, plus a bias.

        Args:
            weights: Matrices of all experts, one after the other.
            first, n_rows: First row and number of rows to multiply, of the rows of one expert.
            bias: Bias of all experts, one after the other.
        """
        plan = self._plan
        n = self._experts.n_experts
        n_before = len(plan.operations)
        n_added = len(plan.added)
        has_slots = self._has_slots(x)
        plan.matmul(
            weights.part(first, n_rows), x, out, bias, plan.max_tokens * self._experts.n_used
        )
        for operation in plan.operations[n_before:]:
            weight = operation.weight
            assert weight is not None
            if weight.name == weights.name:
                if has_slots:
                    patches = self._form_patches(x, plan.form(weights))
                else:
                    patches = {}
                if bias:
                    patches |= {"add": (bias.row_bytes, 0, 0)}
                else:
                    patches |= {}
                self._multiply_each(operation, weights.size_bytes // n, out.n, patches)
            else:  # an adapter's
                self._multiply_each(
                    operation, weight.size_bytes, weight.n_rows, {"q": (0, 4 * x.n * has_slots, 0)}
                )
        for operation in plan.added[n_added:]:
            weight = operation.weight
            assert weight is not None
            step = (0, 4 * out.n, 0)
            n_bytes = weights.n_rows // n * weight.row_bytes
            self._multiply_each(
                operation, n_bytes, out.n, {"q": (0, 4 * weight.n_cols, 0), "add": step}
            )

    def _multiply_each(
        self,
        operation: Operation,
        matrix_bytes: int,
        n_out: int,
        patches: dict[str, tuple[int, int, int]],
    ) -> None:
        """Make a product's row run for each expert.

        Args:
            matrix_bytes: Bytes of an expert's matrix.
            n_out: Elements of an expert's result for a token.
        """
        patches |= {
            "weights": (matrix_bytes, 0, 0),
            "out": (0, 4 * n_out, 0),
            "claims": (0, 0, self._plan.claim_bytes),
        }
        operation.arguments["claims"] = 0
        operation.n_parts = self._most
        self._run_for_each(operation, patches)
        self._products.append(operation)

    def scale_gate(self, scales: Tensor) -> None:
        """Compute gate *= the number of each expert, between two barriers."""
        self._plan.scale(self.gate, 1.0)
        self._plan.operations[-1].arguments["by"] = scales.address
        self._run_for_each(
            self._plan.operations[-1], {"x": (0, 4 * self.gate.n, 0), "by": (4, 0, 0)}
        )
        self._plan.barrier()

    def activate(self) -> Activations:
        """Compute gate = function(gate) * up of each expert, or up = function(up); return the
        result."""
        step = (0, 4 * self.gate.n, 0)
        if self._experts.has_no_gate:
            self._plan.activate(self._experts.gate, self.up)
        else:
            self._plan.gate(self._experts.gate, self.gate, self.up)
        self._run_for_each(self._plan.operations[-1], {"gate": step, "up": step})
        if self._experts.has_no_gate:
            return self.up
        return self.gate

    def join(
        self, shared: Activations | None, shared_gate: Activations | None, out: Activations
    ) -> None:
        """Compute out = the weighted sum of a token's results, plus those of shared experts; ends
        the layer's rows."""
        self._plan.add_row(
            "sum experts", records.SUM_EXPERTS, results=self.results.address, slots=self._slots,
            weights=self._weights,
            n_used=self._experts.n_used, n=out.n, shared=address_or_zero(shared),
            shared_gate=address_or_zero(shared_gate), out=out.address,
        )  # fmt: skip
        self._plan.adds_by_itself(self.results, out)
        self._allocate_claims()

    def _has_slots(self, x: Activations) -> bool:
        return x in (self.inputs, self.gate, self.up)

    def _form_patches(self, x: Activations, name: str) -> dict[str, tuple[int, int, int]]:
        token_bytes: Quantized = x.token_bytes(name)
        return {
            "q": (0, token_bytes.q, 0),
            "d": (0, token_bytes.d, 0),
            "sums": (0, token_bytes.sums, 0),
        }

    def _run_for_each(self, operation: Operation, patches: dict[str, tuple[int, int, int]]) -> None:
        """Make a row's kernel run for each expert.

        Args:
            patches: Word of the record -> what is added to it times the expert's number, its first
                slot, and its index among those in use.
        """
        rows = [
            (getattr(operation.record, name), *factors)
            for name, factors in patches.items()
            if any(factors)
        ]
        values = np.array(rows, np.int64)
        table = self._buffers.table(f"patches {values.ravel().tolist()}", values.nbytes)
        table.array(np.int64, values.shape)[:] = values
        n_threads = self._plan.claim_bytes // COUNTER_BYTES
        operation.each = {
            "table": self._table, "patches": table.address, "n_patches": len(rows),
            "scratch": self._buffers.table("one expert's record", EACH_BYTES * n_threads).address,
        }  # fmt: skip

    def _allocate_claims(self) -> None:
        """Give every product claim counters for each expert.

        Layers use the same memory in turn; ``group tokens`` resets it.
        """
        expert_bytes = self._plan.claim_bytes
        memory = self._buffers.table(
            "experts' claims", expert_bytes * self._most * len(self._products)
        )
        for i, operation in enumerate(self._products):
            operation.arguments["claims"] = memory.address + i * expert_bytes * self._most
        assert self._grouping is not None
        self._grouping.arguments |= {
            "claims": memory.address, "claims_bytes": expert_bytes, "n_claims": len(self._products),
            "row_claims_bytes": expert_bytes * self._most,
        }  # fmt: skip
