"""Speed-up by guesses with slow memory: python -m tests.programs.engine.slow_memory MODEL [-t
THREADS] [-g GUESSES].

A neighbour process reads memory all the time, as a browser might, so that weights arrive slowly.
MODEL should be much larger than the caches; random weights will do. A known text is fed as a reply.
A seeded coin decides whether each guess offered is the right token or a wrong one. Guesses are then
computed always ("forced"), or where the engine's balance finds that they pay ("chosen"). Guesses
themselves cost nothing here, as from repeated text; with --predictor the model's own predictor
computes each of them before the coin decides.

All ways take turns in random order, a stretch of a few tokens each; a figure is the median of the
speed relative to the plain stretches of the same turn.
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
N_CTX = 2048
ACCEPTED = (0, 35, 60, 80)
Way = tuple[str, int]
"""Way to use guesses, and the percentage of them that is right."""
PLAIN: Way = ("plain", 0)


class CoinGuessing(Guessing):
    """Guesses of a known text, some of them wrong.

    Args:
        text: the prompt and the reply.
        is_forced: whether every guess is computed, at any cost.
        n_guesses: number of guesses at once.
        rate: probability that a guess is right.
        uses_predictor: whether the predictor is asked for guesses, instead of the text.
    """

    def __init__(
        self,
        *arguments: object,
        text: Sequence[int],
        is_forced: bool,
        n_guesses: int,
        rate: float,
        coin: random.Random,
        uses_predictor: bool,
    ) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._uses_predictor = uses_predictor
        self._text = text
        self._is_forced = is_forced
        self._n_guesses = n_guesses
        self._rate = rate
        self._coin = coin

    def propose(self, limit: int) -> list[int]:
        """Return guesses to compute."""
        if self._uses_predictor:
            return []
        if not self._is_forced:
            return super().propose(min(limit, self._n_guesses))
        if not self._costs.step_s:
            return []
        return self._guesses(min(limit, self._n_guesses))

    def best_draft(self, limit: int, n_proposed: int) -> int:
        """Return the number of guesses for the predictor to compute; 0 if it is not used."""
        if not self._uses_predictor:
            return 0
        limit = min(limit, self._n_guesses)
        if not self._is_forced:
            return super().best_draft(limit, n_proposed)
        return limit if self._costs.step_s else 0

    def _matches(self, limit: int) -> Iterator[tuple[Match, list[int]]]:
        yield (False, LONGEST), self._guesses(limit)

    def _guesses(self, limit: int) -> list[int]:
        return coin_guesses(self._text, len(self._tokens), limit, self._rate, self._coin)


def coin_guesses(
    text: Sequence[int], position: int, n: int, rate: float, coin: random.Random
) -> list[int]:
    """Return guesses of the n tokens from a position on, some of them wrong."""
    guesses = list(text[position : position + n])
    for index, token in enumerate(guesses):
        if coin.random() >= rate:
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
    """Stretches of one text, fed in every way, and what they took.

    Args:
        text: the prompt and the reply.
        n: tokens of a stretch.
        n_guesses: number of guesses at once.
        names: ways to use guesses.
        uses_predictor: whether the predictor computes each guess.
    """

    def __init__(
        self,
        session: Session,
        text: Sequence[int],
        n: int,
        n_guesses: int,
        names: Sequence[str],
        uses_predictor: bool,
    ) -> None:
        self._uses_predictor = uses_predictor
        self._session = session
        self._text = text
        self._n = n
        self._n_guesses = n_guesses
        self._coin = random.Random(5)
        self._ways = [PLAIN, ("plain again", 0), *product(names, ACCEPTED)]
        self._seconds: dict[Way, list[float]] = {way: [] for way in self._ways}
        self._costs = {way: GuessCosts() for way in self._ways}
        self._n_tried = dict.fromkeys(self._ways, 0)
        self._n_right = dict.fromkeys(self._ways, 0)
        session.prefill(text[:N_PROMPT])

    def turn(self) -> None:
        """Feed a stretch in every way, in random order."""
        if self._session.length + (1 + len(self._ways)) * self._n > len(self._text):
            self._session.prefill(self._text[:N_PROMPT])
        for way in random.sample(self._ways, len(self._ways)):
            self._feed(way)

    def _feed(self, way: Way) -> None:
        session = self._session
        session.guess_costs = self._costs[way]
        position = session.length
        guessing = partial(
            CoinGuessing,
            text=self._text,
            is_forced=way[0] == "forced",
            n_guesses=self._n_guesses,
            rate=way[1] / 100,
            coin=self._coin,
            uses_predictor=self._uses_predictor,
        )
        draft = Session.draft

        def draft_by_coin(session: Session, token: int, n: int) -> list[int]:
            draft(session, token, n)
            return coin_guesses(self._text, session.length + 1, n, way[1] / 100, self._coin)

        is_plain = way[0].startswith("plain")
        with (
            patch.object(generation, "Guessing", guessing),
            patch.object(Session, "draft", draft_by_coin),
        ):
            start_s = time.perf_counter()
            replay(session, self._text[position : position + self._n], not is_plain)
            self._seconds[way].append(time.perf_counter() - start_s)
        self._n_tried[way] += sum(session.guess_tally.n_tried.values())
        self._n_right[way] += sum(session.guess_tally.n_right.values())

    def report(self) -> str:
        """Return a table: medians of the speed relative to the plain stretches of the same turn."""
        again = self._seconds["plain again", 0]
        pairs = list(zip(self._seconds[PLAIN], again, strict=True))
        plain_s = [(first + second) / 2 for first, second in pairs]
        low, median, high = (
            self._n / seconds(plain_s) for seconds in (max, statistics.median, min)
        )
        noise = statistics.median(max(pair) / min(pair) for pair in pairs)
        lines = [
            f"plain {median:.2f} tok/s ({low:.2f} to {high:.2f}), {len(plain_s)} turns of "
            f"{self._n} tokens; two plain stretches of a turn differ {noise:.2f} times"
        ]
        for way in self._ways[2:]:
            ratios = [plain / own for plain, own in zip(plain_s, self._seconds[way], strict=True)]
            quarters = statistics.quantiles(ratios, n=4)
            share = 100 * self._n_right[way] / max(1, self._n_tried[way])
            tried = self._n_tried[way] / len(plain_s)
            lines.append(
                f"  {way[0]}, {way[1]:2} % right: {quarters[1]:.2f}x ({quarters[0]:.2f} to "
                f"{quarters[2]:.2f}); {tried:.1f} tried a turn, {share:.0f} % right"
            )
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-g", "--guesses", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("-n", type=int, default=16, help="tokens of a stretch")
    parser.add_argument("-s", "--seconds", type=float, default=200, help="begin no turn after this")
    parser.add_argument("--chosen", action="store_true", help="measure the engine's choice, too")
    parser.add_argument("--predictor", action="store_true", help="compute guesses by the predictor")
    parser.add_argument("--draft", help="file of an assistant")
    parser.add_argument("--alone", action="store_true", help="no neighbour reads memory")
    options = parser.parse_args()
    names = ["forced"]
    if options.chosen:
        names.append("chosen")
    tokens = random.Random(4)
    with neighbour(not options.alone):
        model = Model.open(options.model, threads=options.threads, assistant=options.draft)
        session = model.session(N_CTX)
        if session.memory.max_guesses < options.guesses:
            parser.error(f"this model computes up to {session.memory.max_guesses} guesses at once")
        text = [tokens.randrange(model.tokenizer.vocab_size - 1) & ~1 for _ in range(N_CTX)]
        if options.predictor and session.pipeline.predictor is None:
            parser.error("this model has no predictor")
        trials = Trials(session, text, options.n, options.guesses, names, options.predictor)
        trials.turn()  # measures what runs cost
        trials.turn()
        end_s = time.monotonic() + options.seconds
        while time.monotonic() < end_s:
            trials.turn()
    print(f"{model.name}, {options.threads} threads, {options.guesses} guesses")
    print(trials.report(), flush=True)


if __name__ == "__main__":
    main()
