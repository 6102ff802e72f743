"""Cost of guesses by a model's own predictor: python -m tests.programs.engine.draft_cost MODEL
[--draft FILE] [-t THREADS].

Times of a step of one token, of a run with one to three guesses, of a guess itself, and of what the
predictor stores in each step (the step of a session without it). All take turns in random order;
figures are medians, in steps of a session without a predictor. Random weights will do.
``tests.programs.engine.slow_memory --predictor`` measures whole replies.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from engine import Model, Session

N_CTX = 1024
N_PROMPT = 64
ACCEPTED = (0.0, 0.35, 0.6, 0.8)


def step(session: Session, text: list[int]) -> float:
    """Return the seconds of a step of one token."""
    start_s = time.perf_counter()
    session.feed(text[:1])
    return time.perf_counter() - start_s


def run(session: Session, text: list[int], n: int) -> float:
    """Return the seconds of a run with n guesses, of which the token stays."""
    start_s = time.perf_counter()
    session.advance_with_guesses(text[0], text[1 : n + 1])
    return time.perf_counter() - start_s


def draft(session: Session, text: list[int]) -> float:
    """Return the seconds of a guess; a step follows it."""
    start_s = time.perf_counter()
    session.draft(text[0], 1)
    seconds = time.perf_counter() - start_s
    session.feed(text[:1])
    return seconds


def expected_speed(accepted: float, n: int, run_steps: float, draft_steps: float) -> float:
    """Return the tokens of a round with n guesses over its cost in steps."""
    n_tokens = sum(accepted**i for i in range(n + 1))
    return n_tokens / (run_steps + n * draft_steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--draft", help="file of an assistant")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-s", "--seconds", type=float, default=60, help="begin no turn after this")
    options = parser.parse_args()
    chance = random.Random(4)
    plain_model = Model.open(options.model, threads=options.threads, has_predictor=False)
    model = Model.open(options.model, threads=options.threads, assistant=options.draft)
    text = [chance.randrange(plain_model.tokenizer.vocab_size) for _ in range(N_CTX)]
    plain = plain_model.session(N_CTX)
    session = model.session(N_CTX)
    if session.pipeline.predictor is None:
        parser.error("this model has no predictor")
    for each in (plain, session):
        each.prefill(text[:N_PROMPT])
    ways: dict[str, Callable[[list[int]], float]] = {
        "a step without a predictor": lambda rest: step(plain, rest),
        "a step with one": lambda rest: step(session, rest),
        "a guess": lambda rest: draft(session, rest),
    }
    for n in range(1, session.memory.max_guesses + 1):
        ways[f"a run with {n} guesses"] = lambda rest, n=n: run(session, rest, n)  # type: ignore[misc]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    end_s = time.monotonic() + options.seconds
    is_first = True
    while is_first or time.monotonic() < end_s:
        for name in random.sample(list(ways), len(ways)):
            for each in (plain, session):
                if each.length > N_CTX - 16:
                    each.prefill(text[:N_PROMPT])
                    each.feed(text[:1])
            taken_s = ways[name](text[chance.randrange(N_CTX - 8) :])
            if not is_first:
                seconds[name].append(taken_s)
        is_first = False
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    step_s = medians["a step without a predictor"]
    print(f"{model.name}, {options.threads} threads, {len(seconds['a guess'])} turns")
    for name, median_s in medians.items():
        quarters = statistics.quantiles(seconds[name], n=4)
        print(
            f"{name:28} {1000 * median_s:7.2f} ms ({1000 * quarters[0]:.2f} to "
            f"{1000 * quarters[2]:.2f}), {median_s / step_s:.2f} steps"
        )
    for n in range(1, session.memory.max_guesses + 1):
        run_steps = medians[f"a run with {n} guesses"] / step_s
        gains = [
            f"{expected_speed(rate, n, run_steps, medians['a guess'] / step_s):.2f}x"
            for rate in ACCEPTED
        ]
        print(f"expected with {n} guesses, 0, 35, 60, 80 % right: {', '.join(gains)}")


if __name__ == "__main__":
    main()
