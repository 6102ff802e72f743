"""The predictor of one session: the rows that it reads, and the tokens that it can guess.

It is a block of the model's file, or an assistant: a small model in a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cache.picture_ids import text_ids
from engine.machine.memory import Memory
from engine.models import predictor
from engine.plan.buffers import SMALL_BATCH_TOKENS, Activations

if TYPE_CHECKING:
    from engine.assistant import Assistant
    from engine.config import ModelConfig
    from engine.weights.weights import Tensor, Weights

DRAFT_ROWS = 32_768
"""Number of rows of a draft head, a multiple of 32."""

Rows = np.ndarray[Any, np.dtype[np.uint8]]
FloatRow = np.ndarray[Any, np.dtype[np.float32]]


class HiddenRows:
    """Rows after the last norm that the predictor reads, kept from one run to the next.

    Attributes:
        rows: row 0 is that of the token before a run; those of its tokens follow.
    """

    def __init__(self, dim: int, max_tokens: int) -> None:
        self.rows = Activations("hidden", dim, max_tokens + 1)
        self._values = self.rows.array()
        self._pos = 0
        self._n_tokens = 0
        self._replaced: FloatRow | None = None
        """Row 0 before the predictor's own row took its place."""

    def has(self, pos: int) -> bool:
        """Whether the row of the token before a position is there."""
        return 0 <= pos - self._pos <= self._n_tokens and pos > 0

    def begin_run(self, pos: int, n_tokens: int) -> None:
        """Prepare for a run of the layers; without a row of the token before it, zeros serve."""
        self.begin(pos)
        self._n_tokens = n_tokens

    def begin(self, pos: int) -> None:
        """Move the row of the token before a position to row 0."""
        if self._replaced is not None:
            self._values[0] = self._replaced
            self._replaced = None
        if not self.has(pos):
            self._values[0] = 0.0
        elif pos > self._pos:
            self._values[0] = self._values[pos - self._pos]
        self._pos = pos
        self._n_tokens = 0

    @property
    def before(self) -> FloatRow:
        """Row of the token before the present run."""
        row: FloatRow = self._values[0]
        return row

    def write(self, pos: int, rows: FloatRow) -> None:
        """Write the rows of a run's tokens, the first of which has this position."""
        self.begin_run(pos, len(rows))
        self._values[1 : len(rows) + 1] = rows

    def hand_on(self, row: FloatRow) -> None:
        """Use the predictor's own row for the token before the next guess, until ``begin``."""
        if self._replaced is None:
            self._replaced = self._values[0].copy()
        self._values[0] = row


class DraftHead:
    """Copy of the rows of an output matrix for some tokens, from which a guess is chosen.

    The whole matrix would take most of a guess's time: a vocabulary of 248,320 tokens is more than
    a third of a model of 0.8B. Tokens that the conversation has used are among the rows; the others
    have the lowest ids, which byte-pair encoding gives to the commonest tokens. A token without a
    row is never guessed; replies do not change (FR-Spec, arXiv:2502.14856).

    Args:
        source: the whole matrix.

    Attributes:
        tensor: the chosen rows as a matrix.
        token_ids: (``DRAFT_ROWS``,) int64, the token of each row.
    """

    def __init__(self, source: Tensor) -> None:
        n_bytes = DRAFT_ROWS * source.row_bytes
        self._memory = Memory(n_bytes)
        self._rows = self._memory.array(np.uint8, (DRAFT_ROWS, source.row_bytes))
        name = f"{source.name}, rows for guesses"
        self.tensor = replace(
            source, name=name, n_rows=DRAFT_ROWS, size_bytes=n_bytes, address=self._memory.address
        )
        self.token_ids = np.arange(DRAFT_ROWS)
        self._has_row = np.zeros(source.n_rows, np.bool_)
        self._is_used = np.zeros(source.n_rows, np.bool_)
        self._next_row = DRAFT_ROWS - 1
        self._n_seen = 0

    def follow(self, tokens: list[int], source: Rows) -> None:
        """Give a row to each new token of a conversation.

        Args:
            tokens: all tokens of the conversation.
            source: bytes of the whole matrix, (vocab_size, row_bytes).
        """
        if not self._has_row.any():  # the memory is not used before the first guess
            self._rows[:] = source[:DRAFT_ROWS]
            self._has_row[:DRAFT_ROWS] = True
        new = text_ids(tokens[min(self._n_seen, len(tokens)) :])
        self._is_used[new] = True
        for token in new:
            if not self._has_row[token]:
                self._add(token, source)
        self._n_seen = len(tokens)

    def _add(self, token: int, source: Rows) -> None:
        """Replace the row of the highest id that is not used, if there is one."""
        while self._next_row > 0 and self._is_used[self.token_ids[self._next_row]]:
            self._next_row -= 1
        row = self._next_row
        self._has_row[self.token_ids[row]] = False
        self._has_row[token] = True
        self.token_ids[row] = token
        self._rows[row] = source[token]


class Predictor:
    """Memory of the predictor of one session.

    Args:
        weights: weights of the model.
        max_tokens: limit on the tokens of a run.
        assistant: None if the predictor is a block of the model's file.

    Attributes:
        hidden: rows that it reads.
        hidden_of_batch: rows that it reads in a run of several sessions, one of each.
        assistant: None if the predictor is a block of the model's file.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        max_tokens: int,
        assistant: Assistant | None = None,
    ) -> None:
        self.hidden = HiddenRows(config.dim, max_tokens)
        self.hidden_of_batch = Activations("hidden of batch", config.dim, SMALL_BATCH_TOKENS)
        self.assistant = assistant
        self._config = config
        self._head: DraftHead | None = None
        if config.vocab_size > 2 * DRAFT_ROWS:
            self._head = DraftHead(self._whole_matrix(weights))

    def _whole_matrix(self, weights: Weights) -> Tensor:
        if self.assistant is not None:
            return self.assistant.head
        return predictor.output_matrix(self._config, weights)

    def matrix(self, weights: Weights) -> Tensor:
        """Return the matrix of the logits: all rows, in the place in use, or a draft head's."""
        if self._head is None:
            return self._whole_matrix(weights)
        return self._head.tensor

    def begin(self, tokens: list[int], weights: Weights) -> None:
        """Prepare for a guess.

        Args:
            tokens: tokens in the cache, before the chosen token.
        """
        self.hidden.begin(len(tokens))
        if self._head is not None:
            owner = weights if self.assistant is None else self.assistant.weights
            self._head.follow(tokens, owner.rows(self._whole_matrix(weights).name))

    def begin_batch(self, sessions: Iterable[Predictor]) -> None:
        """Prepare for a run of the next tokens of several sessions."""
        for row, session in zip(self.hidden_of_batch.array(), sessions, strict=False):
            row[:] = session.hidden.before

    def token_of(self, row: int) -> int:
        """Return the token of a row of the output matrix."""
        if self._head is None:
            return row
        return int(self._head.token_ids[row])
