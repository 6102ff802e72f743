"""Step records: the token ids and positions that the kernels of a run read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from engine.kernels.records import STEP
from engine.machine.memory import Memory
from engine.plan.buffers import MAX_BLOCK_TOKENS, SMALL_BATCH_TOKENS
from engine.plan.rows import POSITIONS_OFFSET

STEP_BYTES = 128
_POSITIONS = POSITIONS_OFFSET // 8


class StepRecord:
    """Memory of one record: a number of tokens, their position, and the address of their ids; and
    of the record of positions after it."""

    def __init__(self) -> None:
        self._memory = Memory(STEP_BYTES)
        self.address = self._memory.address
        self.words = self._memory.array(np.int64, (STEP_BYTES // 8,))


class StepRecords:
    """The step records of one pipeline.

    Args:
        max_tokens: size of the largest block.

    Attributes:
        block: record of all tokens of a block.
        last: record of the last token of a block.
        batch: record of the next tokens of several pipelines.
        token: record of one token of a trial, which reads the first slot.
        position_offset: difference of the next token's position in the text and its index in the
            cache.
    """

    def __init__(self, max_tokens: int) -> None:
        self._tokens = Memory(4 * max_tokens)
        self._token_ids = self._tokens.array(np.int32, (max_tokens,))
        self.block = StepRecord()
        self.block.words[STEP.tokens // 8] = self._tokens.address
        self.last = StepRecord()
        self.batch = StepRecord()
        self.token = StepRecord()
        self.token.words[STEP.n_tokens // 8] = 1
        self._batch_tokens = Memory(4 * SMALL_BATCH_TOKENS)
        self._batch_ids = self._batch_tokens.array(np.int32, (SMALL_BATCH_TOKENS,))
        n_pieces = -(-max_tokens // MAX_BLOCK_TOKENS)
        self._pieces = Memory(STEP_BYTES * n_pieces)
        self._piece_words = self._pieces.array(np.int64, (n_pieces, STEP_BYTES // 8))
        self.position_offset = 0

    def set_block(self, tokens: Sequence[int], pos: int, slot: int) -> None:
        """Set the token ids and the first position of the next run.

        Args:
            slot: slot of the recurrent states that the run reads.
        """
        n = len(tokens)
        self._token_ids[:n] = tokens
        block = self.block.words
        block[STEP.n_tokens // 8] = n
        block[STEP.start_pos // 8] = pos
        block[STEP.index // 8] = 0
        block[STEP.slot // 8] = slot
        block[_POSITIONS + STEP.n_tokens // 8] = n
        block[_POSITIONS + STEP.start_pos // 8] = pos + self.position_offset
        last = self.last.words
        last[STEP.n_tokens // 8] = 1
        last[STEP.start_pos // 8] = pos + n - 1
        last[STEP.tokens // 8] = self._tokens.address + 4 * (n - 1)
        last[STEP.index // 8] = n - 1
        last[_POSITIONS + STEP.n_tokens // 8] = 1
        last[_POSITIONS + STEP.start_pos // 8] = pos + n - 1 + self.position_offset

    def set_chosen(self, token: int, pos: int, slot: int) -> None:
        """Set a chosen token, which is not in the cache yet, and its position: a run reads the
        cache up to the position before it."""
        self.set_block([token], pos - 1, slot)
        self.block.words[_POSITIONS + STEP.start_pos // 8] = pos + self.position_offset

    def set_batch(self, tokens: Iterable[int]) -> int:
        """Set the next token of each pipeline of a batch; returns the number of tokens."""
        n = 0
        for token in tokens:
            self._batch_ids[n] = token
            n += 1
        self.batch.words[STEP.n_tokens // 8] = n
        self.batch.words[STEP.tokens // 8] = self._batch_tokens.address
        return n

    def set_pieces(self, n_tokens: int) -> int:
        """Divide a text into pieces of ``MAX_BLOCK_TOKENS`` tokens; returns the number of
        pieces."""
        n_pieces = -(-n_tokens // MAX_BLOCK_TOKENS)
        for n in range(n_pieces):
            size = min(MAX_BLOCK_TOKENS, n_tokens - n * MAX_BLOCK_TOKENS)
            self._piece_words[n, STEP.n_tokens // 8] = size
        return n_pieces

    def piece_addresses(self, n_pieces: int) -> range:
        """Return the addresses of the records of the first pieces of a text."""
        end = self._pieces.address + n_pieces * STEP_BYTES
        return range(self._pieces.address, end, STEP_BYTES)
