"""Speed-up by guesses on real text: python -m tests.programs.engine.guesses MODEL [-n TOKENS] [-r
ROUNDS].

The model writes each reply once; then it is fed again with guesses and without, in turn. Tokens a
walk depend on no other program, seconds do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from engine import Model, Sampling, Session
from engine.measure.replay import replay
from engine.sampling.earlier_text import EarlierText
from engine.sampling.guessing import GuessCosts

ROOT = Path(__file__).resolve().parents[3]
N_CTX = 4096


def lines_of(path: str, n: int) -> str:
    return "\n".join((ROOT / path).read_text(encoding="utf-8").splitlines()[:n])


CODE = f"Here is a Python file:\n\n```python\n{lines_of('app/conversations/state_files.py', 60)}\n```\n\n"
DOCUMENT = (
    f"{lines_of('app/conversations/README.md', 30)}\n\nSummarise this document in five points."
)
CACHE = "Write an LRU cache class in Python with get, put and a short test."
TASKS = {
    "code with a name changed": [
        (
            f"{CODE}Rename the function `drop` to `drop_first` everywhere and return the whole "
            f"file, changing nothing else."
        )
    ],
    "a second turn over a document": [
        DOCUMENT,
        "What does it say about damage? Quote every sentence, then explain it.",
    ],
    "prose": ["Write a story about a lighthouse keeper and a storm, in about 300 words."],
    "a class written before": [CACHE.replace("put", "put, a time to live for each entry")],
}


def written(
    model: Model, session: Session, texts: list[str], n: int
) -> tuple[list[int], list[int]]:
    """Return a prompt and its reply, after the turns before them."""
    chat = model.chat()
    reply = list[int]()
    for text in texts:
        if reply:
            chat.add_reply(reply, model.tokenizer.decode(reply), ())
        chat.add_user(text)
        prompt = list(chat.prompt_ids())
        session.prefill(prompt)
        reply = [piece.token_id for piece in session.generate(Sampling.greedy(), n, guess=True)]
    return prompt, reply


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=300)
    parser.add_argument("-r", type=int, default=3)
    options = parser.parse_args()
    model = Model.open(options.model)
    session = model.session(N_CTX)
    prompt, reply = written(model, session, [CACHE], options.n)
    earlier = EarlierText([prompt + reply], model.tokenizer.vocab_size)
    clocks: tuple[Callable[[], float], ...] = (time.perf_counter, time.process_time)
    for name, texts in TASKS.items():
        prompt, reply = written(model, session, texts, options.n)
        took: dict[bool, list[list[float]]] = {True: [], False: []}
        n_guessed = 0
        for n in range(options.r):
            for guess in (True, False) if n % 2 else (False, True):
                session.prefill(prompt)
                session.earlier_text = earlier
                session.guess_costs = GuessCosts()
                began = [clock() for clock in clocks]
                n_guessed = max(n_guessed, replay(session, reply, guess))
                took[guess].append(
                    [clock() - index for clock, index in zip(clocks, began, strict=True)]
                )
        wall, cpu = (
            statistics.median(times[index] for times in took[False])
            / statistics.median(times[index] for times in took[True])
            for index in (0, 1)
        )
        walks = len(reply) / (len(reply) - n_guessed)
        print(
            (
                f"{name:30} {len(reply):4} tokens, {walks:.2f} a walk; {wall:.2f}x, "
                f"processor time {cpu:.2f}x"
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
