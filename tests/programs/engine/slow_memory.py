"""Speed-up by guesses with slow memory: python -m tests.programs.engine.slow_memory MODEL [-t
THREADS] [-g GUESSES].

A neighbour process reads memory all the time, as a browser might, so that weights arrive slowly.
MODEL should be much larger than the caches; random weights will do. A known text is fed as a reply.
A seeded coin decides whether each guess offered is the right token or a wrong one. Guesses are then
computed always ("forced"), or where the engine's balance finds that they pay ("chosen"). Guesses
themselves cost nothing here, as from repeated text; a predictor's cost is extra.

All ways take turns in random order; figures are relative to the median without guesses.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from unittest.mock import patch

import numpy as np

from engine import Model, Session, generation
from engine.measure.replay import replay
from engine.sampling.guessing import LONGEST, GuessCosts, Guessing, Match

NEIGHBOUR_BYTES = 1 << 30
N_PROMPT = 32
N_CTX = 512
ACCEPTED = (0, 35, 60, 80)
Way = tuple[str, int]
"""Way to use guesses, and the percentage of them that is right."""
PLAIN: Way = ("plain", 0)


class CoinGuessing(Guessing):
    """Guesses of a known text, some of them wrong.

    Args:
        text: the prompt and the reply.
        is_forced: whether every guess is computed, whatever it costs.
        n_guesses: number of guesses at once.
        rate: probability that a guess is right.
    """

    def __init__(
        self,
        *arguments: object,
        text: Sequence[int],
        is_forced: bool,
        n_guesses: int,
        rate: float,
        coin: random.Random,
    ) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._text = text
        self._is_forced = is_forced
        self._n_guesses = n_guesses
        self._rate = rate
        self._coin = coin

    def propose(self, limit: int) -> list[int]:
        """Return guesses to compute."""
        if not self._is_forced:
            return super().propose(min(limit, self._n_guesses))
        if not self._costs.step_s:
            return []
        return self._guesses(min(limit, self._n_guesses))

    def best_draft(self, limit: int, n_proposed: int) -> int:
        """Return 0: the predictor is not used."""
        return 0

    def _matches(self, limit: int) -> Iterator[tuple[Match, list[int]]]:
        yield (False, LONGEST), self._guesses(limit)

    def _guesses(self, limit: int) -> list[int]:
        position = len(self._tokens)
        guesses = list(self._text[position : position + limit])
        for index, token in enumerate(guesses):
            if self._coin.random() >= self._rate:
                guesses[index] = token ^ 1
        return guesses


def read_memory() -> None:
    """Read memory until the process is ended."""
    data = np.ones(NEIGHBOUR_BYTES // 8, np.int64)
    while True:
        data.max()


@contextmanager
def neighbour(is_wanted: bool) -> Iterator[None]:
    """Run a process that reads memory."""
    process = multiprocessing.Process(target=read_memory, daemon=True)
    if is_wanted:
        process.start()
        time.sleep(2.0)
    try:
        yield
    finally:
        if is_wanted:
            process.kill()
            process.join()


class Trials:
    """Replays of one text, and what they took.

    Args:
        text: the prompt and the reply.
        n_guesses: number of guesses at once.
    """

    def __init__(self, session: Session, text: Sequence[int], n_guesses: int) -> None:
        self._session = session
        self._text = text
        self._n_guesses = n_guesses
        self._coin = random.Random(5)
        ways = [PLAIN, *product(("forced", "chosen"), ACCEPTED)]
        self._seconds: dict[Way, list[float]] = {way: [] for way in ways}
        self._costs = {way: GuessCosts() for way in ways}
        self._n_tried = dict.fromkeys(ways, 0)
        self._n_right = dict.fromkeys(ways, 0)

    def turn(self) -> None:
        """Replay the text in every way, in random order."""
        ways = list(self._seconds)
        random.shuffle(ways)
        for way in ways:
            self._replay(way)

    def _replay(self, way: Way) -> None:
        session = self._session
        session.prefill(self._text[:N_PROMPT])
        session.guess_costs = self._costs[way]
        guessing = partial(
            CoinGuessing,
            text=self._text,
            is_forced=way[0] == "forced",
            n_guesses=self._n_guesses,
            rate=way[1] / 100,
            coin=self._coin,
        )
        with patch.object(generation, "Guessing", guessing):
            start_s = time.perf_counter()
            replay(session, self._text[N_PROMPT:], way != PLAIN)
            self._seconds[way].append(time.perf_counter() - start_s)
        self._n_tried[way] += sum(session.guess_tally.n_tried.values())
        self._n_right[way] += sum(session.guess_tally.n_right.values())

    def report(self) -> str:
        """Return a table."""
        plain_s = statistics.median(self._seconds[PLAIN])
        n = len(self._text) - N_PROMPT
        turns = len(self._seconds[PLAIN])
        low, high = (n / seconds(self._seconds[PLAIN]) for seconds in (max, min))
        lines = [
            f"plain {n / plain_s:.2f} tok/s ({low:.2f} to {high:.2f}), {turns} turns of {n} tokens"
        ]
        for accepted in ACCEPTED:
            words = [f"  {accepted:3} % right:"]
            for name in ("forced", "chosen"):
                way = name, accepted
                ratio = plain_s / statistics.median(self._seconds[way])
                share = 100 * self._n_right[way] / max(1, self._n_tried[way])
                tried = self._n_tried[way] / turns
                words.append(f"{name} {ratio:.2f}x ({tried:.0f} tried, {share:.0f} % right)")
            steps = self._costs["forced", accepted].run_steps[self._n_guesses]
            words.append(f"a run takes {steps:.2f} steps")
            lines.append("  ".join(words))
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-g", "--guesses", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("-n", type=int, default=32, help="tokens of the text")
    parser.add_argument("-s", "--seconds", type=float, default=200, help="begin no turn after this")
    parser.add_argument("--alone", action="store_true", help="no neighbour reads memory")
    options = parser.parse_args()
    tokens = random.Random(4)
    n_tokens = N_PROMPT + options.n
    with neighbour(not options.alone):
        model = Model.open(options.model, threads=options.threads)
        session = model.session(N_CTX)
        if session.memory.max_guesses < options.guesses:
            parser.error(f"this model computes up to {session.memory.max_guesses} guesses at once")
        text = [tokens.randrange(model.tokenizer.vocab_size - 1) & ~1 for _ in range(n_tokens)]
        trials = Trials(session, text, options.guesses)
        end_s = time.monotonic() + options.seconds
        while time.monotonic() < end_s:
            trials.turn()
    print(f"{model.name}, {options.threads} threads, {options.guesses} guesses")
    print(trials.report(), flush=True)


if __name__ == "__main__":
    main()
