"""``python -m tests.app.chat.form_cost MODEL``: what a JSON schema costs of the speed of writing, in one run.

Three ways to write, in turn: any text; the schema, each token sampled; the schema, what it forces computed together.
The processor time of the form is that of its own calls: masks, what is forced, and tokens taken. Any model of the shape
will do, of random weights as well. Nothing else may run meanwhile where the rates are to count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from app.chat.answer_form import SCHEMA, AnswerForm
from app.chat.form_constraint import Forms
from engine import Model, Sampling, Session
from engine.sampling.constraint import Allowed, Constraint, constrained
from engine.sampling.sampler import Sampler

PEOPLE = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "about": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["friend", "colleague", "neighbour"]},
        },
        "required": ["name", "about", "age", "kind"],
        "additionalProperties": False,
    },
}
"""Strings with a limit and without, numbers, choices, and names that are forced; it never ends."""
WAYS = "any text", "schema, sampled", "schema, forced together"


class Timed:
    """A constraint whose processor time is counted.

    Args:
        jumps: whether forced tokens are told.
    """

    def __init__(self, constraint: Constraint, jumps: bool) -> None:
        self._constraint, self._jumps, self.seconds = constraint, jumps, 0.0

    @property
    def is_over(self) -> bool:
        return False

    def forced(self) -> list[int]:
        return self._count(self._constraint.forced) if self._jumps else []

    def allowed(self) -> Allowed:
        return self._count(self._constraint.allowed)

    def accept(self, token_id: int) -> None:
        self._count(lambda: self._constraint.accept(token_id))

    def _count(self, work: Callable[[], Any]) -> Any:
        started_s = time.thread_time()
        try:
            return work()
        finally:
            self.seconds += time.thread_time() - started_s


def one_round(session: Session, forms: Forms, way: str, n_tokens: int, seed: int) -> tuple[float, float]:
    """Return the seconds of writing, and those of the form's own calls, for so many tokens after the same prompt."""
    session.prefill(session.model.tokenizer.encode("The people in the room are"))
    form = AnswerForm(SCHEMA, json.dumps(PEOPLE), "people")
    timed = Timed(forms.constraint(form), way == WAYS[2]) if way != WAYS[0] else None
    started_s = time.perf_counter()
    n = sum(1 for _ in session.generate(Sampling(seed=seed), max_tokens=n_tokens, constraint=timed))
    seconds = time.perf_counter() - started_s
    if n < n_tokens:  # any text may end by itself
        seconds *= n_tokens / max(1, n)
    return seconds, timed.seconds if timed is not None else 0.0


def overlay_s(vocab_size: int) -> float:
    """Return the processor time of laying a mask over logits."""
    import numpy as np

    logits = np.random.default_rng(1).normal(size=vocab_size).astype(np.float32)
    allowed = np.ones(vocab_size, np.bool_)
    Sampler(Sampling(), vocab_size).choose(constrained(logits, allowed), [])
    spent = []
    for _ in range(20):
        started_s = time.thread_time()
        constrained(logits, allowed)
        spent.append(time.thread_time() - started_s)
    return statistics.median(spent)


def measured(model: Model, rounds: int, n_tokens: int) -> dict[str, tuple[float, float]]:
    """Return for each way the median seconds a token, and the form's microseconds a token."""
    session, forms = model.session(n_ctx=n_tokens + 64), Forms(model.tokenizer)
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for way in WAYS:
        one_round(session, forms, way, n_tokens, 0)
    for seed in range(rounds):
        for way in WAYS:
            spent[way].append(one_round(session, forms, way, n_tokens, seed))
    session.close()
    return {
        way: (
            statistics.median(one for one, _ in pairs) / n_tokens,
            1e6 * statistics.median(form for _, form in pairs) / n_tokens,
        )
        for way, pairs in spent.items()
    }


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.app.chat.form_cost", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    model = Model.open(options.model, options.threads)
    overlay_us = 1e6 * overlay_s(model.tokenizer.vocab_size)
    found = measured(model, options.rounds, options.tokens)
    plain_s = found[WAYS[0]][0]
    print(f"{model.name}: vocabulary of {model.tokenizer.vocab_size}, {model.threads} threads, {options.rounds} rounds")
    for way, (seconds, form_us) in found.items():
        own_us = form_us + overlay_us if form_us else 0.0
        print(
            f"{way:<26}{1 / seconds:>8.1f} tok/s{plain_s / seconds:>8.1%}"
            f"{own_us:>8.0f} us a token of processor time for the form = {own_us / plain_s / 1e6:.2%} of writing"
        )
    model.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
