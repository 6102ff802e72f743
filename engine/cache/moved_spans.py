"""Spans of a cache that have another place in the next prompt: their keys are rotated to the new
positions, and their values are kept.

Keys and values of a moved span were computed after other tokens, so the results differ slightly
from computing them again. This suits the completion of code, where the text around a gap moves with
every key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.cache.cached_tokens import common_prefix
from engine.cache.layer_cache import LayerCache

N_AGAIN = 8
"""Number of tokens at the beginning of a span that are computed again.

They know most about the text before them. With the mark between prefix and suffix moved, too,
Qwen2.5-Coder 0.5B goes on from where the prefix ended before (KL of 8 against computing all tokens
again); without it from the right place (0.05, and 0.02 with eight tokens).
"""
_TOKEN_BYTES = 4


@dataclass(frozen=True)
class MovedSpan:
    """Tokens of a cache that a prompt has elsewhere.

    Attributes:
        first: index of the first token in the cache.
        to: index of the first token in the prompt.
        n: number of tokens.
    """

    first: int
    to: int
    n: int

    @property
    def end(self) -> int:
        """Index after the last token in the prompt."""
        return self.to + self.n


def find_spans(
    cached: Sequence[int], prompt: Sequence[int], n_shared: int, min_tokens: int
) -> list[MovedSpan]:
    """Find the spans of a cache that a prompt has after their common prefix.

    Args:
        cached: token ids in the cache.
        prompt: token ids of the next prompt.
        n_shared: length of the common prefix.
        min_tokens: least number of equal tokens, more than ``N_AGAIN``.

    Returns:
        Spans in the order of the prompt, each without its first ``N_AGAIN`` tokens, and without the
        last token of the prompt.
    """
    # A run of min_tokens has a whole window that begins at a multiple of the window's size.
    window = min_tokens // 2
    n_bytes = window * _TOKEN_BYTES
    cached_bytes = np.array(cached, np.int32).tobytes()
    prompt_bytes = np.array(prompt[:-1], np.int32).tobytes()
    places: dict[bytes, int] = {}
    for place in range(n_shared, len(cached) - window + 1, window):
        start = place * _TOKEN_BYTES
        places.setdefault(cached_bytes[start : start + n_bytes], place)

    spans: list[MovedSpan] = []
    end = n_shared
    index = n_shared
    while index + window < len(prompt):
        start = index * _TOKEN_BYTES
        match = places.get(prompt_bytes[start : start + n_bytes])
        index += 1
        if match is None:
            continue
        to = index - 1
        n_before = common_prefix(cached[:match][::-1], prompt[end:to][::-1])
        n_after = common_prefix(cached[match:], prompt[to:-1])
        if n_before + n_after >= min_tokens:
            n_skipped = n_before - N_AGAIN
            spans.append(MovedSpan(match - n_skipped, to - n_skipped, n_skipped + n_after))
            end = spans[-1].end
            index = end
    return spans


def move_spans(layer: LayerCache, spans: Sequence[MovedSpan]) -> None:
    """Move spans of one layer's keys and values to other positions.

    The spans may overlap their new positions, but these do not overlap each other.
    """
    moved = [span for span in spans if span.to != span.first]
    ranges = [(span.first, span.first + span.n) for span in moved]
    keys = [layer.keys.read_tiles(*positions) for positions in ranges]
    values = [layer.values.read_rows(*positions) for positions in ranges]
    for span, span_keys, span_values in zip(moved, keys, values, strict=True):
        layer.rotate(span_keys, span.to - span.first)
        layer.keys.write_tiles(span.to, span_keys)
        layer.values.write_rows(span.to, span_values)


def joined_spans(spans: Sequence[MovedSpan], first: int) -> list[MovedSpan]:
    """Return the moves that bring moved spans together from an index on, without gaps."""
    joined = []
    for span in spans:
        joined.append(MovedSpan(span.to, first, span.n))
        first += span.n
    return joined
