"""The merge loop of all BPE tokenizers: join neighbouring symbols, lowest rank first, then
leftmost.

O(n log n) for any text: each symbol has at most one live entry in the queue.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from engine.tokenizer.pauses import PERIOD_STEPS, pause


def merge_symbols(symbols: list[str], ranks: Mapping[str, int], joiner: str) -> list[str]:
    """Join neighbouring symbols until no pair has a rank.

    Args:
        symbols: (n,) the smallest pieces, in order.
        ranks: ``left + joiner + right`` to rank; the lowest rank is joined first, ties from the
            left.
        joiner: separator of the two halves in a key of ``ranks``.

    Returns:
        The joined symbols; concatenated they are the input.
    """
    n = len(symbols)
    texts = list(symbols)
    following = list(range(1, n + 1))
    preceding = list(range(-1, n - 1))
    # The key of the queued merge of each symbol with its follower. An entry that differs from it is
    # out of date.
    live = [-1] * n
    queue: list[int] = []
    for left in range(n - 1):
        if left % PERIOD_STEPS == PERIOD_STEPS - 1:
            pause()
        rank = ranks.get(texts[left] + joiner + texts[left + 1])
        if rank is not None:
            live[left] = rank * n + left
            queue.append(live[left])
    heapify(queue)

    def enqueue(left: int, right: int) -> None:
        rank = ranks.get(texts[left] + joiner + texts[right])
        if rank is None:
            live[left] = -1
        else:
            live[left] = rank * n + left
            heappush(queue, live[left])

    n_merges = 0
    while queue:
        key = heappop(queue)
        n_merges += 1
        if n_merges % PERIOD_STEPS == 0:
            pause()
        left = key % n
        if live[left] != key:
            continue
        right = following[left]
        texts[left] += texts[right]
        texts[right] = ""
        live[right] = live[left] = -1
        after = following[left] = following[right]
        if after < n:
            preceding[after] = left
            enqueue(left, after)
        if preceding[left] >= 0:
            enqueue(preceding[left], left)
    return [text for text in texts if text]
