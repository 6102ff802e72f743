"""How soon a second turn begins:
``python -m tests.programs.engine.second_turn MODEL... [--tokens N] [--thought N]``.

A system message and a document are computed and answered; a second message follows. What that
prompt computes, and how long that takes, is compared with reading the whole conversation again.
``--thought``: tokens of the answer that the second prompt leaves out, as templates leave out a
thought: layers go back to the end of the first message.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine import Model, Sampling

N_SYSTEM = 64
N_REPLY = 32
N_MESSAGE = 24
N_OPENING = 4
"""Tokens of the system message, the answer, the second message, and of what opens an answer."""


class Turn(NamedTuple):
    """Tokens of the second prompt, those computed of it, and seconds; then of the whole
    conversation."""

    n_prompt: int
    n_computed: int
    seconds: float
    n_read_again: int
    seconds_again: float


def second_turn(model: Model, n_tokens: int, n_thought: int = 0) -> Turn:
    """Compute, answer, compute the second prompt, and compute it once more in an empty session."""
    rng = np.random.default_rng(0)
    n_vocab = model.config.vocab_size
    prompt, message = (
        rng.integers(n_vocab // 2, n_vocab, n).tolist() for n in (n_tokens, N_MESSAGE + N_OPENING)
    )
    n_ctx = n_tokens + N_REPLY + len(message) + 64
    session, fresh = (model.session(n_ctx=n_ctx) for _ in range(2))
    positions = {N_SYSTEM, n_tokens - N_OPENING}
    session.prefill(prompt, checkpoint_positions=positions)
    reply = [
        piece.token_id for piece in session.generate(Sampling(temperature=1.0, seed=3), N_REPLY)
    ]
    cached = [*prompt, *reply[n_thought:]]
    ids = [*cached, *message]
    positions |= {len(cached), len(ids) - N_OPENING}
    second, again = (
        piece.prefill(ids, checkpoint_positions=positions) for piece in (session, fresh)
    )
    return Turn(len(ids), second.fed, second.seconds, again.fed, again.seconds)


def main() -> None:
    """Print one row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--thought", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(f"| model | prompt | computed | s | read again | s | share of the time |\n|{'---|' * 7}")
    for path in options.models:
        model = Model.open(path, threads=options.threads)
        result = second_turn(model, options.tokens, options.thought)
        share = result.seconds / result.seconds_again
        print(
            f"| {path.stem} | {result.n_prompt} | {result.n_computed} | {result.seconds:.2f} | "
            f"{result.n_read_again} | "
            f"{result.seconds_again:.2f} | {share:.1%} |", flush=True,
        )  # fmt: skip
        model.close()


if __name__ == "__main__":
    main()
