"""Rows of a plan, and the memory that they refer to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from engine.kernels import records
from engine.plan.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engine.cache.kv_cache import BorrowedCache, KVCache
    from engine.cache.states import SlotPair
    from engine.machine.memory import Memory
    from engine.plan.buffers import Activations
    from engine.weights.weights import Tensor

_Item = TypeVar("_Item")

POSITIONS_OFFSET = 64
"""Offset in bytes from a step record to a second one whose ``start_pos`` is the first token's
position in the text. After a picture it may be less than the index in the cache."""


@dataclass(frozen=True)
class Lane:
    """Sequence of tokens in a run: the address of its step record, and the memory of its layers."""

    step: int
    cache: KVCache | BorrowedCache
    states: SlotPair


@dataclass(frozen=True)
class Trial:
    """Run that keeps the recurrent state after each of its tokens.

    Attributes:
        step: Address of a step record of one token, for the rows of each token.
        states: Slots that each token reads and writes.
    """

    step: int
    states: Sequence[SlotPair]


class PlanRows:
    """Rows of a plan in the order of execution, for the classes that write them.

    Args:
        step: Address of the step record.
        max_tokens: Limit on the tokens of a run.
        scratch: (address, bytes per thread) of memory that no operation leaves anything in.
        lanes: Sequences whose tokens a run holds.
        trial: Description of a run that keeps the state after each token; None for other runs.

    Attributes:
        phase: Part of the model that the next operations belong to, for the profile.
        added: Rows that follow the next barrier: what adapters add to the products before it.
    """

    def __init__(
        self,
        step: int,
        max_tokens: int,
        scratch: tuple[int, int],
        lanes: Sequence[Lane] = (),
        trial: Trial | None = None,
    ) -> None:
        self.operations: list[Operation] = []
        self.phase = "embedding"
        self.lanes = lanes
        self._trial = trial
        self.scratch = scratch
        self.added: list[Operation] = []
        self._step = step
        self._max_tokens = max_tokens
        self._first_token = 0
        """Token that the next rows begin with."""
        self._memory: list[Memory] = []
        self._product: tuple[Activations, Activations, list[Operation]] | None = None
        """Vector that the last product reads, its result, and its rows; None if the last rows are
        no product."""

    @property
    def is_decode(self) -> bool:
        """Whether this is a plan of decode."""
        return self._max_tokens == 1

    @property
    def max_tokens(self) -> int:
        """Limit on the tokens of a run."""
        return self._max_tokens

    def add_row(
        self, kernel: str, record: Any, matrix: Tensor | None = None, **arguments: int
    ) -> Operation:
        """Append a row and return it.

        Args:
            matrix: Weights that the row reads.
            arguments: Words of ``record``, except for the step.
        """
        arguments["step"] = self._step
        if matrix is not None:
            n_rows = arguments.get("n_rows", 1)
        else:
            n_rows = 0
        operation = Operation(kernel, arguments, record, self.phase, matrix, n_rows)
        self.operations.append(operation)
        self._product = None
        return operation

    def keep(self, memory: Memory) -> None:
        """Hold memory whose address a row has, as long as the plan lives."""
        self._memory.append(memory)

    def barrier(self) -> None:
        """Make all threads finish the operations so far before any of them begins the next."""
        self.operations[-1].barrier = True
        if self.added:
            self.operations += self.added
            self.added = []
            self.operations[-1].barrier = True

    def each_lane(self) -> Iterator[Lane]:
        """Yield every sequence; rows that are written meanwhile are for its tokens.

        Threads share heads differently in rows of one token and of several, so barriers are needed.
        """
        if len(self.lanes) == 1:
            yield self.lanes[0]
        else:
            yield from self._token_by_token([(lane.step, lane) for lane in self.lanes])

    def each_state(self) -> Iterator[SlotPair]:
        """Yield the slots of every sequence, or of every token of a trial; rows that are written
        meanwhile are for its tokens."""
        if self._trial is None:
            yield from (lane.states for lane in self.each_lane())
        else:
            step = self._trial.step
            yield from self._token_by_token([(step, states) for states in self._trial.states])

    def _token_by_token(self, items: Sequence[tuple[int, _Item]]) -> Iterator[_Item]:
        """Yield each item, with rows for one token of the run under its step record."""
        step = self._step
        self.barrier()
        for token, (token_step, item) in enumerate(items):
            self._step = token_step
            self._first_token = token
            yield item
        self._step = step
        self._first_token = 0
        self.barrier()

    def address_of(self, x: Activations, first: int = 0) -> int:
        """Return the address of an element of x, of the first token of the next rows."""
        return x.address + 4 * (self._first_token * x.n + first)

    def copy(
        self,
        x: Activations,
        first: tuple[int, int],
        out: Activations,
        out_first: tuple[int, int],
        n: int,
        n_heads: int = 1,
    ) -> None:
        """Copy n elements of each head; n is a multiple of 8.

        Args:
            first, out_first: (element of the first head, elements from one head to the next) in
                each vector.
        """
        self.add_row(
            "copy", records.COPY, x=x.address + 4 * first[0], x_stride=x.n, x_step=first[1],
            out=out.address + 4 * out_first[0], out_stride=out.n, out_step=out_first[1], n=n,
            n_heads=n_heads,
        )  # fmt: skip
