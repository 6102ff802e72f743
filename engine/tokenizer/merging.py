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
        ranks: rank of each pair ``left + joiner + right``. The lowest rank is joined first, equal
            ranks from the left.
        joiner: separator of the two halves in a key of ``ranks``.

    Returns:
        The joined symbols; concatenated they equal the input.
    """
    n = len(symbols)
    texts = list(symbols)
    following = list(range(1, n + 1))
    preceding = list(range(-1, n - 1))
    # Key of the queued merge of each symbol with the next one. Other entries in the queue are
    # outdated.
    live = [-1] * n
    queue: list[int] = []
    for index in range(n - 1):
        if index % PERIOD_STEPS == PERIOD_STEPS - 1:
            pause()
        rank = ranks.get(texts[index] + joiner + texts[index + 1])
        if rank is not None:
            live[index] = rank * n + index
            queue.append(live[index])
    heapify(queue)

    def enqueue(index: int, right_index: int) -> None:
        rank = ranks.get(texts[index] + joiner + texts[right_index])
        if rank is None:
            live[index] = -1
        else:
            live[index] = rank * n + index
            heappush(queue, live[index])

    n_merges = 0
    while queue:
        key = heappop(queue)
        n_merges += 1
        if n_merges % PERIOD_STEPS == 0:
            pause()
        index = key % n
        if live[index] != key:
            continue
        right_index = following[index]
        texts[index] += texts[right_index]
        texts[right_index] = ""
        live[right_index] = -1
        live[index] = -1
        next_index = following[right_index]
        following[index] = next_index
        if next_index < n:
            preceding[next_index] = index
            enqueue(index, next_index)
        if preceding[index] >= 0:
            enqueue(preceding[index], index)
    return [text for text in texts if text]
