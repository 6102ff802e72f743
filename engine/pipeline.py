"""The computation of one session: its plans, its buffers and its KV cache.

Token ids go in and logits come out. Text, conversations and sampling are not known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cache.hybrid_memory import HybridMemory
from engine.cache.kv_cache import KVCache
from engine.cache.kv_types import KVType
from engine.cache.ring import RING_BLOCK, ring_slots
from engine.cache.rotation import key_weights_of, rotations_of
from engine.cache.states import CHECKPOINT_BYTES, RecurrentStates
from engine.kernels.records import STEP
from engine.machine.memory import Memory
from engine.machine.topology import last_cache_bytes
from engine.models import gemma4_assistant, load_architecture, predictor
from engine.models.decoder import Decoder, Stage
from engine.models.steps import product
from engine.plan.buffers import MAX_BLOCK_TOKENS, SMALL_BATCH_TOKENS, Buffers
from engine.plan.compilation import ProgressCallback, compile_kernels
from engine.plan.dequantise import fill
from engine.plan.lookahead import FROM_MEMORY, WeightAccess, ahead_of
from engine.plan.operation import Operation
from engine.plan.plan import (
    BLOCK,
    DECODE,
    ROW_WORDS,
    SMALL_BATCH,
    Plan,
    scratch_bytes_per_thread,
)
from engine.plan.profile import OTHER_RUNS, ProfileTable
from engine.plan.rows import Lane, Trial
from engine.plan.streaming import stream
from engine.predictor import Predictor
from engine.step_records import StepRecords

if TYPE_CHECKING:
    from engine.assistant import Assistant
    from engine.cache.hybrid_memory import LayerMemory
    from engine.config import ModelConfig
    from engine.plan.crew import Crew
    from engine.vision.known import RowsBlock
    from engine.weights.weights import Weights

Logits = np.ndarray[Any, np.dtype[np.float32]]

BLOCK_BYTES = 96 << 20
"""Limit in bytes on the activations of a prefill block; wide models have smaller blocks."""
MIN_BLOCK = 32
"""Minimum of ``max_block_tokens``, in tokens."""
MAX_BLOCK_PRODUCTS = 400_000_000
"""Limit on the products of one operation of prefill attention: about 15 ms on two cores of 2025,
80 ms on two of 2014."""
HEAD_TOKENS = 64
"""Number of tokens whose logits the block kernels compute together. With a vocabulary of 262,144
tokens their logits take 64 MiB."""


@dataclass(frozen=True)
class PlanSpec:
    """Description of a plan.

    Attributes:
        n_tokens: tokens of a run; 0 for as many as the largest block has.
        batch: ``DECODE``, ``SMALL_BATCH`` or ``BLOCK``, which selects the kernels of the matrix
            products. A head of one token uses those of ``DECODE``.
        layers: layers that run; None for the output head alone.
        n_logits: number of tokens that get logits.
        is_embedding: whether the plan leaves the vector of each token after the last norm, instead
            of logits.
        is_draft: whether the plan computes the predictor instead of the layers.
        visibility: how the rows of a picture see each other; empty for a plan of tokens.
    """

    n_tokens: int
    batch: str
    stage: Stage | None
    n_logits: int = 0
    is_embedding: bool = False
    is_draft: bool = False
    visibility: str = ""


PLANS = {
    "decode": PlanSpec(1, DECODE, Stage.ALL, 1),
    "small batch": PlanSpec(SMALL_BATCH_TOKENS, SMALL_BATCH, Stage.STORED),
    "small batch last": PlanSpec(1, DECODE, Stage.LAST, 1),
    "block": PlanSpec(0, BLOCK, Stage.STORED),
    "block last": PlanSpec(1, BLOCK, Stage.LAST, 1),
}
"""Plans of every session without a predictor."""
PREDICTING_PLANS = {
    "decode": PlanSpec(1, DECODE, Stage.ALL, 1),
    "small batch": PlanSpec(SMALL_BATCH_TOKENS, SMALL_BATCH, Stage.ALL),
    "small batch last": PlanSpec(1, DECODE, None, 1),
    "block": PlanSpec(0, BLOCK, Stage.ALL),
    "block last": PlanSpec(1, BLOCK, None, 1),
    "draft": PlanSpec(1, DECODE, Stage.ALL, is_draft=True),
}
"""Plans of a session with a predictor, which needs all layers of all tokens."""
ASSISTED_PLANS = {**PLANS, "draft": PlanSpec(1, DECODE, Stage.ALL, is_draft=True)}
"""Plans of a session with an assistant."""
LAST_PLANS = "small batch last", "block last"
"""Plans of the last token of a block."""
VECTORS = "vectors"
EMBEDDING_PLANS = {VECTORS: PlanSpec(0, BLOCK, Stage.ALL, is_embedding=True)}
"""Plan of an embedding model.

An encoder takes a long text as one block. ``vectors`` takes up to ``MAX_BLOCK_TOKENS`` tokens,
``vectors 2`` twice as many, and so on. The longer ones are written on first use.
"""
LOGITS_PLANS = {
    "verify": PlanSpec(SMALL_BATCH_TOKENS, SMALL_BATCH, Stage.ALL, SMALL_BATCH_TOKENS),
    "full block": PlanSpec(0, BLOCK, Stage.ALL),
    "head": PlanSpec(1, DECODE, None, 1),
    "block head": PlanSpec(HEAD_TOKENS, BLOCK, None, HEAD_TOKENS),
}
"""Plans for the logits of every token, written and compiled on first use."""
PICTURE = "picture"
"""First word of the names of plans for the rows of a picture; the rest is their visibility. They
are written and compiled on first use."""


@dataclass(frozen=True, eq=False)
class WeightPlans:
    """Plans over one copy of the weights, and the tables of those that are compiled.

    Attributes:
        plans: plans by name.
        tables: address and number of rows of each compiled plan, by name.
    """

    weights: Weights
    plans: dict[str, Plan]
    tables: dict[str, tuple[int, int]]


@dataclass(frozen=True, eq=False)
class ThreadScratch:
    """Scratch memory of the threads.

    Attributes:
        bytes_per_thread: size of one thread's share.
        n_threads: limit on the threads of a run.
    """

    memory: Memory
    bytes_per_thread: int
    n_threads: int

    @classmethod
    def allocate(cls, configs: Sequence[ModelConfig], n_threads: int) -> ThreadScratch:
        """Allocate the scratch that the kernels of models need."""
        n_bytes = max(map(scratch_bytes_per_thread, configs))
        return cls(Memory(n_bytes * n_threads), n_bytes, n_threads)

    @property
    def words(self) -> tuple[int, int]:
        """Address of the memory and bytes of one thread, as a plan takes them."""
        return self.memory.address, self.bytes_per_thread


class Pipeline:
    """Plans of one session and the memory that they point into.

    Args:
        n_threads: limit on the threads of a run.
        checkpoint_bytes: limit on the copies of recurrent states.
        peer: a pipeline of the same model, context and KV type, whose activations this one shares;
            only one of the two computes at a time.
        is_embedding: whether to compute vectors of tokens instead of logits.
        assistant: small model that guesses the next tokens; None if there is none.

    Attributes:
        config: the model's shape, with the ropes of this context.
        max_block_tokens: number of tokens of the largest prefill block.
        logits: (vocab_size,) float32, overwritten by ``decode``, ``last_logits`` and ``head``.
        small_batch_logits: (``SMALL_BATCH_TOKENS``, vocab_size) float32, overwritten by ``verify``.
        memory: memory of the layers: KV cache and recurrent states.
        predictor: memory of the model's predictor; None if it has none.
        rotations: rotation of the keys by position, for each rope.
        profile: table that the runs of a plan are timed into, by the plan's name; empty if nothing
            is timed.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kv_type: KVType,
        max_seq_len: int,
        crew: Crew,
        n_threads: int,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        peer: Pipeline | None = None,
        is_embedding: bool = False,
        assistant: Assistant | None = None,
    ) -> None:
        self._crew = crew
        if is_embedding:
            self._specs = EMBEDDING_PLANS
        elif assistant is not None:
            self._specs = ASSISTED_PLANS
        elif config.predictor is not None:
            self._specs = PREDICTING_PLANS
        else:
            self._specs = PLANS
        self.config = config
        self.kv_type = kv_type
        self.max_block_tokens = max_block_tokens(config, max_seq_len)
        self.rotations = rotations_of(config, weights, max_seq_len)
        self._cache = KVCache(
            config, kv_type, max_seq_len, self.rotations, key_weights_of(config, weights)
        )
        self._states = RecurrentStates(config, checkpoint_bytes)
        self.memory: LayerMemory = self._cache
        if config.recurrents:
            self.memory = HybridMemory(self._cache, self._states)

        self.predictor: Predictor | None = None
        configs = [config]
        if assistant is not None:
            self.predictor = Predictor(config, weights, SMALL_BATCH_TOKENS, assistant)
            configs.append(assistant.config)
        elif config.predictor is not None:
            self.predictor = Predictor(config, weights, self.max_block_tokens)
        self._steps = StepRecords(self.max_block_tokens)
        self._scratch: ThreadScratch
        self._buffers: Buffers
        if peer is None:
            self._scratch = ThreadScratch.allocate(configs, n_threads)
            self._buffers = Buffers(self.max_block_tokens)
        else:
            self._scratch = peer._scratch
            self._buffers = peer._buffers
        self.logits = self._buffers.vector("logits", config.vocab_size, 1).array()[0]
        self.small_batch_logits = self._buffers.vector(
            "logits", config.vocab_size, SMALL_BATCH_TOKENS
        ).array()

        self._batch_sequences: dict[str, list[Lane]] = {}
        """Sequences of each plan of ``decode_batch``, by the plan's name."""
        self._trials: dict[str, Trial] = {}
        """Trials of the plans of ``verify`` for recurrent models, by the plan's name."""
        self._addresses: dict[str, int] = {}
        """Addresses of the compiled kernels, by name."""
        self.profile: dict[str, ProfileTable] = {}
        self._weight_access = FROM_MEMORY
        self._other_weights: list[WeightPlans] = []
        self._current = WeightPlans(weights, self._write_plans(weights), {})
        decode_bytes = sum(
            tensor.size_bytes for tensor in next(iter(self.plans.values())).matrices()
        )
        self._set_weight_access(WeightAccess(is_cached=decode_bytes <= last_cache_bytes()))

    @property
    def plans(self) -> dict[str, Plan]:
        """Plans over the weights in use, by name."""
        return self._current.plans

    @property
    def position_offset(self) -> int:
        """Difference of the next token's position in the text and its index in the cache."""
        return self._steps.position_offset

    @position_offset.setter
    def position_offset(self, n: int) -> None:
        self._steps.position_offset = n

    @property
    def tensors(self) -> Collection[str]:
        """Names of the weights."""
        return self._current.weights.tensors

    # ---- writing plans

    def _write_plans(self, weights: Weights) -> dict[str, Plan]:
        return {name: self._write_plan(name, weights) for name in self._specs}

    def _spec(self, name: str) -> PlanSpec:
        spec = self._specs.get(name) or LOGITS_PLANS.get(name)
        if spec is not None:
            return spec
        if name.startswith(VECTORS):
            return EMBEDDING_PLANS[VECTORS]
        if name.startswith(PICTURE):
            return replace(self._specs["block"], visibility=name.removeprefix(f"{PICTURE} "))
        return LOGITS_PLANS["verify"]  # a plan of ``decode_batch``, or of a trial

    def _write_plan(self, name: str, weights: Weights) -> Plan:
        if name in weights.tensors:
            return self._write_product_plan(weights, name)

        spec = self._spec(name)
        if name in self._batch_sequences:
            step = self._steps.batch
        elif name in LAST_PLANS:
            step = self._steps.last
        else:
            step = self._steps.block
        lanes = self._batch_sequences.get(
            name, [Lane(step.address, self._cache, self._states.pair)]
        )

        n_tokens = spec.n_tokens or self.max_block_tokens
        pieces = range(0)
        if n_tokens > MAX_BLOCK_TOKENS:  # the long text of an encoder
            n_pieces = int(name.removeprefix(VECTORS) or 1)
            n_tokens = min(n_tokens, n_pieces * MAX_BLOCK_TOKENS)
            pieces = self._steps.piece_addresses(n_pieces)

        scratch = self._scratch
        plan = Plan(
            step.address,
            n_tokens,
            scratch.words,
            scratch.n_threads,
            lanes,
            pieces,
            self._trials.get(name),
        )
        plan.batch = spec.batch
        memory = self.predictor
        if spec.is_draft and memory is not None and memory.assistant is not None:
            self._write_assistant(plan, memory, memory.assistant, weights)
            return plan
        plan.adapt(weights.low_ranks, self._buffers)
        decoder = Decoder(
            plan,
            self.config,
            weights,
            self._buffers,
            self.rotations,
            spec.n_logits,
            spec.stage or Stage.ALL,
            visibility=spec.visibility,
        )
        architecture = load_architecture(self.config.architecture)
        if memory is not None and spec.is_draft:
            predictor.draft(decoder, architecture, memory.hidden.rows, memory.matrix(weights))
        elif spec.stage is not None:
            architecture.compose(decoder)
            if memory is not None and memory.assistant is None:
                is_batch = name in self._batch_sequences
                hidden = memory.hidden_of_batch if is_batch else memory.hidden.rows
                predictor.follow(decoder, architecture, hidden, is_batch)
        if spec.n_logits == 1:
            plan.batch = DECODE
        if spec.n_logits or spec.is_embedding:
            architecture.head(decoder)
        if weights.streamed:
            stream(plan, weights.streamed)
        plan.look_ahead(self._prefetch_distance)
        return plan

    def _write_assistant(
        self, plan: Plan, memory: Predictor, assistant: Assistant, weights: Weights
    ) -> None:
        """Write the guess of an assistant; adapters of the model do not change it."""
        lane = self._lane()
        plan.lanes = [replace(lane, cache=self._cache.lend(assistant.config))]
        rotations = rotations_of(assistant.config, assistant.weights, self._cache.max_seq_len)
        decoder = Decoder(plan, assistant.config, assistant.weights, self._buffers, rotations)
        gemma4_assistant.draft(
            decoder,
            weights["token_embd.weight"],
            memory.hidden.rows,
            memory.matrix(weights),
        )
        plan.look_ahead(self._prefetch_distance)

    def _write_product_plan(self, weights: Weights, name: str) -> Plan:
        """Write the plan that multiplies one matrix."""
        weight = weights[name]
        scratch = self._scratch
        plan = Plan(self._steps.last.address, 1, scratch.words, scratch.n_threads)
        plan.adapt(weights.low_ranks, self._buffers)
        decoder = Decoder(plan, self.config, weights, self._buffers, self.rotations)
        x = self._buffers.vector("pooled", weight.n_cols, 1)
        product(decoder, weight, x, weights.get(name.removesuffix("weight") + "bias"))
        return plan

    def compile(self, progress: ProgressCallback | None) -> None:
        """Compile the plans. Before that they can only be described."""
        plans = list(self.plans.values())
        if "decode" in self._specs:
            # Its kernels are compiled now, its table is written on first use.
            plans.append(self._write_plan("verify", self._current.weights))
        names = [name for plan in plans for name in plan.kernels()]
        self._addresses = compile_kernels(names, progress)
        self._current.tables.clear()
        for name, plan in self.plans.items():
            self._current.tables[name] = plan.table(self._addresses)
        fill(self._buffers.transposed.values())

    def rewrite_plans(self) -> None:
        """Write all plans again after a change of the adapters."""
        self._other_weights.clear()
        previous = self._current
        self._current = WeightPlans(previous.weights, self._write_plans(previous.weights), {})
        try:
            self.compile(None)
        except BaseException:
            self._current = previous
            raise

    # ---- weights in another place

    def use_weights(self, weights: Weights, keep_others: bool = False) -> None:
        """Read the same weights from another place, starting with the next run.

        Args:
            keep_others: keep the plans of the weights in use, so that a switch back costs nothing.
        """
        if weights is not self._current.weights:
            for name in self.plans.keys() - self._specs.keys():  # they are written on next use
                self.plans.pop(name, None)
                self._current.tables.pop(name, None)
            self._other_weights.append(self._current)
            self._current = self._plans_over(weights)
        if not keep_others:
            self._other_weights.clear()

    def _plans_over(self, weights: Weights) -> WeightPlans:
        for saved in self._other_weights:
            if saved.weights is weights:
                self._other_weights.remove(saved)
                return saved
        # The kernels are the same, so nothing is compiled.
        plans = self._write_plans(weights)
        tables = {name: plan.table(self._addresses) for name, plan in plans.items()}
        return WeightPlans(weights, plans, tables)

    # ---- software prefetch

    def look_ahead(self) -> None:
        """Apply the chosen prefetch distances (``engine.plan.lookahead``), starting with the next
        run."""
        for saved in (self._current, *self._other_weights):
            for plan in saved.plans.values():
                plan.look_ahead(self._prefetch_distance)

    def _prefetch_distance(self, quant: str) -> int:
        return ahead_of(quant, self._weight_access)

    def weight_access_for(self, n_threads: int) -> WeightAccess:
        """Return how a number of threads reads the weights."""
        return replace(self._weight_access, is_alone=n_threads == 1)

    def _set_weight_access(self, weight_access: WeightAccess) -> None:
        self._weight_access = weight_access
        self.look_ahead()

    # ---- computing; these methods return False or None if they are cancelled

    def decode(self, token: int, pos: int, n_threads: int) -> bool:
        """Compute one token at a position and its logits; False if cancelled."""
        self._set_block([token], pos)
        is_finished = self._run("decode", n_threads)
        self._keep_rows(pos, 1, 1)
        return is_finished

    def draft(self, following: list[int], tokens: list[int], n_threads: int) -> Logits | None:
        """Compute the predictor's logits for the token after a chosen one or after a guess.

        Args:
            following: the chosen token, and the guesses of the last calls, which follow it.
            tokens: tokens in the cache, which the chosen one follows.

        Returns:
            Logits of the rows of the predictor's matrix, float32, overwritten by the next call;
            None if cancelled.
        """
        assert self.predictor is not None
        pos = len(tokens) + len(following) - 1
        row_name = "last_normed"
        if self.predictor.assistant is None:
            self._steps.set_block(following[-1:], pos, self._states.slot)
        else:
            self._steps.set_chosen(following[-1], len(tokens), self._states.slot)
            row_name = gemma4_assistant.HANDED_ON
        weights = self._current.weights
        if len(following) == 1:
            self.predictor.begin(tokens, weights)
        else:
            row = self._buffers.vector(row_name, self.config.dim, 1).array()[0]
            self.predictor.hidden.hand_on(row)
        if not self._run("draft", n_threads):
            return None
        n_rows = self.predictor.matrix(weights).n_rows
        logits: Logits = self._buffers.vector("draft logits", n_rows, 1).array()[0]
        return logits

    def _set_block(self, tokens: Sequence[int], pos: int) -> None:
        """Set the tokens of the next run of the layers."""
        self._steps.set_block(tokens, pos, self._states.slot)
        if self.predictor is not None and self.predictor.assistant is None:
            self.predictor.hidden.begin_run(pos, len(tokens))

    def _keep_rows(self, pos: int, n: int, n_logits: int) -> None:
        """Keep the rows after the last norm of tokens with logits, which an assistant reads.

        Args:
            n_logits: number of tokens that get logits in the plan that ran.
        """
        if self.predictor is not None and self.predictor.assistant is not None:
            rows = self._buffers.vector("last_normed", self.config.dim, n_logits).array()
            self.predictor.hidden.write(pos, rows[:n])

    def cache_block(
        self, tokens: Sequence[int], pos: int, n_threads: int, is_small_batch: bool
    ) -> bool:
        """Compute and cache the keys, values and states of up to ``max_block_tokens`` tokens; False
        if cancelled.

        Args:
            pos: position of the first token.
            is_small_batch: read the weights once for up to ``SMALL_BATCH_TOKENS`` tokens, with
                results bit-identical to one token at a time.
        """
        self._set_block(tokens, pos)
        return self._run("small batch" if is_small_batch else "block", n_threads)

    def cache_rows(self, block: RowsBlock, pos: int, n_threads: int) -> bool:
        """Compute and cache the keys, values and states of rows of a picture; False if cancelled.

        Args:
            pos: index of the first row in the cache.
        """
        n = len(block.rows)
        dim = self.config.dim
        parts = block.rows.reshape(n, -1, dim)
        names = ["x", *(f"deepstack {number}" for number in range(self.config.n_deepstack))]
        for number, name in enumerate(names):
            self._buffers.vector(name, dim).array()[:n] = parts[:, number]
        if self.predictor is not None:
            self._buffers.vector("embedded", dim).array()[:n] = parts[:, 0]
        for number, rope in enumerate(self.config.ropes):
            if rope.sections:
                angles = self.rotations[rope].picture_angles(block.positions, rope.sections)
                self._buffers.vector(f"angles {number}", rope.dim).array()[:n] = angles
        self._set_block([0] * n, pos)
        return self._run(f"{PICTURE} {block.visibility}", n_threads)

    def last_logits(self, n_threads: int, is_small_batch: bool) -> bool:
        """Compute the logits of the last token of the previous ``cache_block``; False if cancelled.

        Args:
            is_small_batch: the same value as for ``cache_block``.
        """
        is_finished = self._run("small batch last" if is_small_batch else "block last", n_threads)
        self._keep_rows(int(self._steps.last.words[STEP.start_pos // 8]), 1, 1)
        return is_finished

    def verify(self, tokens: Sequence[int], pos: int, n_threads: int) -> bool:
        """Compute a small batch of tokens and the logits of all of them, bit-identical to one token
        at a time; False if cancelled."""
        self._set_block(tokens, pos)
        name = "verify"
        if pairs := self._states.trial_pairs:
            name = f"verify {len(tokens)} from slot {self._states.slot}"
            self._trials.setdefault(name, Trial(self._steps.token.address, pairs))
        is_finished = self._run(name, n_threads)
        self._keep_rows(pos, len(tokens), SMALL_BATCH_TOKENS)
        return is_finished

    def decode_batch(
        self, name: str, steps: Mapping[Pipeline, tuple[int, int]], n_threads: int
    ) -> Logits | None:
        """Compute the next token of several pipelines in one run, bit-identical to one at a time.

        Args:
            name: name of the plan for these pipelines in this order, until ``drop_batch_plans``.
            steps: token and position of each pipeline, at most ``SMALL_BATCH_TOKENS``; all are
                peers of this pipeline, or this one.

        Returns:
            (n, vocab_size) float32 in the order of ``steps``, overwritten by the next run; None if
            cancelled.
        """
        for pipeline, (token, pos) in steps.items():
            pipeline._set_block([token], pos)
        n_tokens = self._steps.set_batch(token for token, _ in steps.values())
        if name not in self._batch_sequences:
            self._batch_sequences[name] = [pipeline._lane() for pipeline in steps]
        if self.predictor is not None:
            self.predictor.begin_batch(
                [pipeline.predictor for pipeline in steps if pipeline.predictor is not None]
            )
        if not self._run(name, n_threads):
            return None
        if self.predictor is not None:
            rows = self._buffers.vector("last_normed", self.config.dim, SMALL_BATCH_TOKENS).array()
            for row, (pipeline, (_, pos)) in enumerate(steps.items()):
                if pipeline.predictor is not None:
                    pipeline.predictor.hidden.write(pos, rows[row : row + 1])
        return self.small_batch_logits[:n_tokens]

    def _lane(self) -> Lane:
        return Lane(self._steps.block.address, self._cache, self._states.pair)

    def drop_batch_plans(self) -> None:
        """Drop the plans of ``decode_batch``, which point into the memory of other pipelines."""
        for name in self._batch_sequences:
            self.plans.pop(name, None)
            self._current.tables.pop(name, None)
        self._batch_sequences.clear()

    def full_block(self, tokens: Sequence[int], pos: int, n_threads: int) -> bool:
        """Compute up to ``max_block_tokens`` tokens in all layers; False if cancelled.

        ``head`` and ``block_head`` then compute their logits.
        """
        self._set_block(tokens, pos)
        return self._run("full block", n_threads)

    def inspect_block(
        self, tokens: Sequence[int], pos: int, n_threads: int, inspect: Callable[[Operation], None]
    ) -> bool:
        """Compute ``full_block`` in pieces; False if cancelled.

        Args:
            inspect: called before each matrix product, which may read the product's input.
        """
        self._set_block(tokens, pos)
        n_threads = self._prepare("full block", n_threads)
        operations = self.plans["full block"].operations
        address = self._current.tables["full block"][0]

        def run_rows(first: int, end: int) -> bool:
            return self._crew.run((address + 8 * ROW_WORDS * first, end - first), n_threads)

        n_done = 0
        n_complete = 0  # rows up to the last barrier
        for index, operation in enumerate(operations):
            if operation.reads is not None:
                if n_complete > n_done and not run_rows(n_done, n_complete):
                    return False
                n_done = n_complete
                inspect(operation)
            if operation.barrier:
                n_complete = index + 1
        return run_rows(n_done, len(operations))

    def head(self, index: int, n_threads: int) -> bool:
        """Compute the logits of one token of the last ``full_block``; False if cancelled."""
        self._steps.block.words[STEP.index // 8] = index
        self._steps.block.words[STEP.n_tokens // 8] = 1
        return self._run("head", n_threads)

    def block_head(self, first: int, n: int, n_threads: int) -> Logits | None:
        """Compute the logits of n tokens of the last ``full_block``, starting at ``first``.

        The block kernels compute them. Tokens before ``first`` are lost.

        Args:
            n: at most ``HEAD_TOKENS``.

        Returns:
            (n, vocab_size) float32, overwritten by the next call; None if cancelled.
        """
        x = self._buffers.vector("x", self.config.dim).array()
        x[:n] = x[first : first + n]
        self._steps.block.words[STEP.n_tokens // 8] = n
        logits = self._buffers.vector("logits", self.config.vocab_size, HEAD_TOKENS).array()
        if self._run("block head", n_threads):
            return logits[:n]
        return None

    def vectors(self, tokens: Sequence[int], pos: int, n_threads: int) -> Logits | None:
        """Compute up to ``max_block_tokens`` tokens in all layers.

        Returns:
            Vectors of the tokens after the last norm, (n, dim) float32, overwritten by the next
            call; None if cancelled.
        """
        self._steps.set_block(tokens, pos, self._states.slot)
        n_pieces = self._steps.set_pieces(len(tokens))
        if not self._run(VECTORS if n_pieces == 1 else f"{VECTORS} {n_pieces}", n_threads):
            return None
        return self._buffers.vector("vectors", self.config.dim).array()[: len(tokens)]

    def multiply(self, name: str, x: Logits, n_threads: int) -> Logits | None:
        """Return a matrix times a vector, plus the bias: (n_rows,) float32; None if cancelled.

        Args:
            name: name of the matrix, (n_rows, n_cols).
            x: (n_cols,) float32.
        """
        self._buffers.vector("pooled", len(x), 1).array()[0] = x
        self._steps.last.words[STEP.n_tokens // 8] = 1
        if not self._run(name, n_threads):
            return None
        branch = self._buffers.vector("branch", self._current.weights[name].n_rows).array()
        return branch[0]  # type: ignore[no-any-return]

    def _prepare(self, name: str, n_threads: int) -> int:
        """Make sure that a plan has a table; returns the number of threads that run it."""
        n_threads = min(n_threads, self._scratch.n_threads)
        if (n_threads == 1) != self._weight_access.is_alone:
            self._set_weight_access(self.weight_access_for(n_threads))
        if name not in self._current.tables:
            plan = self._write_plan(name, self._current.weights)
            self.plans[name] = plan
            self._addresses |= compile_kernels(plan.kernels())
            self._current.tables[name] = plan.table(self._addresses)
        return n_threads

    def _run(self, name: str, n_threads: int) -> bool:
        n_threads = self._prepare(name, n_threads)
        table = self._current.tables[name]
        if not self.profile:
            return self._crew.run(table, n_threads)

        times = self.profile.get(name) or self.profile[OTHER_RUNS]
        start_s = time.perf_counter()
        is_finished = self._crew.run(table, n_threads, times.address)
        times.seconds += time.perf_counter() - start_s
        times.n_runs += 1
        return is_finished

    def block_size_at(self, pos: int) -> int:
        """Return the number of tokens of a block at a position.

        It falls with the number of positions to attend to, so that a block can be cancelled soon.
        """
        n_seen = pos + self.max_block_tokens
        size = self.max_block_tokens
        for attention in self.config.attentions.values():
            n_keys = min(n_seen, attention.window or n_seen)
            products_per_key = 2 * attention.n_heads // attention.n_kv_heads * attention.key_dim
            products_per_token = products_per_key * n_keys
            size = min(size, MAX_BLOCK_PRODUCTS // products_per_token // 8 * 8)
        return max(MIN_BLOCK, size)


def max_block_tokens(config: ModelConfig, max_seq_len: int) -> int:
    """Return the number of tokens of the largest prefill block, a multiple of 32.

    The activations stay below ``BLOCK_BYTES``, and a block fits into the rings of sliding layers.
    An encoder takes a whole text as one block.
    """
    if config.is_encoder:
        return -(-max_seq_len // 32) * 32
    windows = {attention.cache_window for attention in config.attentions.values()}
    size = MAX_BLOCK_TOKENS
    if any(window is not None and ring_slots(window) < max_seq_len for window in windows):
        size = min(size, RING_BLOCK)
    size = min(size, BLOCK_BYTES // (4 * config.activation_floats))
    return max(MIN_BLOCK, size // 32 * 32, -(-config.picture_rows // 32) * 32)
