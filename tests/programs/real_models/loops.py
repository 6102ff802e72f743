"""``python -m tests.programs.real_models.loops MODEL --replies 1000 --out FILE``: which sound replies would
the loop guard end?

Writes replies to ordinary questions as the makers of the model recommend, and ends none. Then a
guard listens to them, and a person judges what is listed: where it would have ended a reply, with
the end of its text; the replies that came nearest to that; and counted lists (lines that differ in
their number alone), of which the guard knows only numbered items. FILE keeps the tokens of the
replies: run again, it goes on after them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.backend.reply import Reply
from app.session.model_sampling import make_sampling
from engine import Model
from engine.prompt.thinking import ThinkingMode
from engine.sampling.loops import COPIES, MORE_TOKENS, LoopGuard, LoopWatch

N_CTX = 512
"""Tokens of a conversation."""
NEAR = 0.4
"""Share of a loop's tokens from which on a reply is listed as near to one."""
COUNTED_LINES = 12
"""So many lines in a row that differ in their number alone are listed."""
SUBJECTS = (
    "the moon", "bread", "a bicycle", "photosynthesis", "the French Revolution", "cats",
    "a black hole", "tea", "chess",
    "the Python language", "rain", "a sailing boat", "Mozart", "the number pi", "old computers",
    "bees", "a garden",
    "volcanoes", "the heart", "money", "a birthday party", "train travel", "the sea", "dreams",
    "wood", "a small shop",
    "sleep", "snow", "coffee", "libraries", "a violin", "glass", "mountains", "the telephone",
    "soil", "dogs",
)  # fmt: skip
REQUESTS = (
    "What is {}?", "Explain {} to a child.", "Write a short poem about {}.",
    "List ten facts about {}.",
    "Make a table with five rows about {}.", "Write a short story about {}.",
    "Give me 20 words that fit {}.",
    "Write a Python class for {} with a few methods.", "Write a song about {} with a refrain.",
    "What are the advantages and disadvantages of {}?", "Write an email to a friend about {}.",
    "Give me a JSON list of six things to do with {}.", "Translate to French: I like {}.",
    "Write a dialogue of two friends who talk about {}.",
    "How does {} change in a year? Make a list by month.",
    "Write a shopping list for {}.", "Write HTML for a page about {}.", "Tell me a joke about {}.",
    "Write a quiz of five questions about {}, with answers.", "Compare {} with the sun in a table.",
    "Write a SQL table for {} and insert ten rows.", "Write a haiku, then a limerick, about {}.",
    "Explain {} step by step.", "Write unit tests in Python for a function that counts {}.",
    "Write the numbers from 1 to 40, and then a sentence about {}.",
    "Summarise what you know of {} in five points.",
    "Write a C program that prints a picture of {} with asterisks.",
    "Write a recipe or a manual for {}.",
)  # fmt: skip
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Judged:
    """A reply as the guard heard it."""

    n: int
    question: str
    n_tokens: int
    nearness: float
    """Largest number of tokens in a repetition, as a share of those that make a loop."""
    stopped_at: int | None
    """Tokens at which it would have been ended."""
    text: str

    @property
    def is_counted(self) -> bool:
        """Whether many lines in a row differ in their number alone."""
        kinds = [_NUMBER.sub("0", line).strip() for line in self.text.split("\n")]
        runs = (
            len(list(group))
            for kind, group in itertools.groupby(kinds)
            if len(kind) > 3 and "0" in kind
        )
        return max(runs, default=0) >= COUNTED_LINES


class Asking:
    """The model, and what is asked of it: question ``n`` with a sampling seed of ``n``."""

    def __init__(self, path: Path, most_tokens: int, threads: int) -> None:
        self.model = Model.open(path, threads=threads)
        self.most_tokens = most_tokens
        self.chat = self.model.chat()
        self.sampling = make_sampling({}, self.model, ThinkingMode())
        self._questions = list(questions())

    def question(self, n: int) -> str:
        """Return what is asked."""
        return self._questions[n % len(self._questions)]

    def prompt(self, n: int) -> list[int]:
        """Return the tokens of a conversation that begins with it."""
        self.chat.start(None)
        return [int(token) for token in self.chat.add_user(self.question(n))]

    def judge(self, n: int, ids: Sequence[int]) -> Judged:
        """Have a guard listen to a reply."""
        tokenizer = self.model.tokenizer
        watch = LoopWatch()
        guard = LoopGuard(tokenizer.spelled_bytes)
        nearness = 0.0
        stopped_at = None
        for index, token in enumerate(ids, 1):
            watch.append(token)
            if watch.period:
                nearness = max(nearness, watch.n_tokens / (COPIES * watch.period + MORE_TOKENS))
            if guard.append(token) and stopped_at is None:
                stopped_at = index
        return Judged(
            n, self.question(n), len(ids), round(nearness, 3), stopped_at, tokenizer.decode(ids)
        )


def questions() -> Iterator[str]:
    """Yield every question once, in an order that never changes."""
    pairs = list(itertools.product(REQUESTS, SUBJECTS))
    random.Random(46).shuffle(pairs)
    for request, subject in pairs:
        yield request.format(subject)


def replies(asking: Asking, ns: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield number and tokens of a reply to each question, one after the other."""
    session = asking.model.session(N_CTX)
    for n in ns:
        sampling = replace(asking.sampling, seed=n)
        reply = Reply(
            session,
            asking.prompt(n),
            sampling,
            max_tokens=asking.most_tokens,
            stop=asking.chat.stops,
        )
        for _ in reply:
            pass
        yield {"n": n, "ids": reply.ids}
    session.close()


def main() -> None:
    """Write the replies, then list those to be judged."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--replies", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=256, help="of a reply, at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    chosen = parser.parse_args()
    lines = chosen.out.read_text(encoding="utf-8").splitlines() if chosen.out.exists() else []
    ids_by_number = {reply["n"]: reply["ids"] for reply in map(json.loads, lines)}
    asking = Asking(chosen.model, chosen.tokens, chosen.threads)
    ns = [n for n in range(chosen.replies) if n not in ids_by_number]
    with chosen.out.open("a", encoding="utf-8") as file:
        for reply in replies(asking, ns):
            file.write(json.dumps(reply) + "\n")
            file.flush()
            ids_by_number[reply["n"]] = reply["ids"]
    judged = [asking.judge(n, ids) for n, ids in sorted(ids_by_number.items())]
    stopped = [reply for reply in judged if reply.stopped_at is not None]
    near = sorted(
        (reply for reply in judged if reply.stopped_at is None and reply.nearness >= NEAR),
        key=lambda o: -o.nearness,
    )
    counted = [reply for reply in judged if reply.is_counted]
    for title, group in (("would be ended", stopped), ("near", near), ("counted", counted)):
        for heard in group:
            print(
                f"---- {title}: {heard.n} {heard.question!r}, {heard.n_tokens} tokens, "
                f"nearness {heard.nearness}"
            )
            print(heard.text[-400:])
    print(
        f"==== {len(judged)} replies, {sum(reply.n_tokens for reply in judged)} tokens: {len(stopped)} "
        "would be ended,"
    )
    print(f"==== {len(near)} are near to it, {len(counted)} count")


if __name__ == "__main__":
    main()
