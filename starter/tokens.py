"""The vocabulary, and conversations as token ids with marks on the ids to learn.

Byte-level BPE with Qwen 2's way of cutting text into words, which keeps digits apart: sums are
learnt digit by digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from starter.format import CONTEXT, END, END_OF_TEXT, START, render
from starter.text.conversation import conversation
from starter.text.tables import Writer

VOCABULARY = 3072
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""``PRE_TOKENIZERS["qwen2"]`` of the engine; a test compares them."""
_CONVERSATIONS_FOR_VOCABULARY = 40_000
_ENCODED_TOGETHER = 1000


def train_vocabulary(seed: int) -> Tokenizer:
    """Learn the vocabulary from generated conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = Writer(seed)
    texts = (
        text
        for _ in range(_CONVERSATIONS_FOR_VOCABULARY)
        for turn in conversation(rng)[1]
        for text in turn
    )
    tokenizer.train_from_iterator((f"user\n{text}" for text in texts), trainer)
    return tokenizer


def load_vocabulary(path: Path) -> Tokenizer:
    """Read a vocabulary; ``path`` is a tokenizer.json."""
    return Tokenizer.from_file(str(path))


def samples(
    tokenizer: Tokenizer,
    seed: int,
    count: int,
    share_short: float = 0.0,
    share_copying: float = 0.0,
    share_more: float = 0.0,
    share_endless: float = 0.0,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Make conversations as ids.

    Args:
        tokenizer: the vocabulary.
        seed: the same one makes the same conversations.
        count: how many.
        share_short, share_copying: see ``conversation``.
        share_more, share_endless: see ``Writer``.

    Yields:
        Ids, (n,) uint16, n at most ``CONTEXT``; and marks, (n,) bool, of the ids to learn: answers
        and their ends.
    """
    rng = Writer(seed)
    rng.share_more = share_more
    rng.share_endless = share_endless
    start = tokenizer.token_to_id(START)
    end = tokenizer.token_to_id(END)
    assistant = tokenizer.encode("assistant\n").ids
    for done in range(0, count, _ENCODED_TOGETHER):
        n_texts = min(_ENCODED_TOGETHER, count - done)
        texts = [render(*conversation(rng, share_short, share_copying)) for _ in range(n_texts)]
        for encoded in tokenizer.encode_batch(texts):
            ids = np.array(encoded.ids[:CONTEXT], np.uint16)
            yield ids, _answers(ids, start, end, assistant)


def _answers(ids: np.ndarray, start: int, end: int, assistant: list[int]) -> np.ndarray:
    """Mark the ids between the head of each answer and its end, the end included."""
    marks = np.zeros(len(ids), bool)
    ends = np.flatnonzero(ids == end)
    for index in np.flatnonzero(ids == start):
        first = index + 1 + len(assistant)
        if list(ids[index + 1 : first]) == assistant:
            behind = ends[np.searchsorted(ends, first) :]
            marks[first : behind[0] + 1 if len(behind) else len(ids)] = True
    return marks
