"""``python -m tests.real_models.loops MODEL --replies 1000 --out FILE``: which sound replies would the loop guard end?

Writes replies to ordinary questions as the makers of the model recommend, with a guard that listens and ends none. Then
it lists for a person to judge: where the guard would have ended a reply, with the end of its text; the replies that
came nearest to that; and counted lists (lines that differ in their number alone), of which the guard knows only
numbered items. FILE keeps the replies: run again, it goes on after the last one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app.chat.opening import make_sampling
from app.chat.reply import Reply
from app.program.settings import built_in_settings
from engine import Model
from engine.prompt.thinking_mode import ThinkingMode
from engine.sampling.loops import COPIES, MORE_TOKENS, LoopGuard, LoopWatch

N_CTX = 1024
NEAR = 0.4
"""Share of a loop's tokens from which on a reply is listed as near to one."""
COUNTED_LINES = 12
"""So many lines in a row that differ in their number alone are listed."""
SUBJECTS = (
    "the moon",
    "bread",
    "a bicycle",
    "photosynthesis",
    "the French Revolution",
    "cats",
    "a black hole",
    "tea",
    "chess",
    "the Python language",
    "rain",
    "a sailing boat",
    "Mozart",
    "the number pi",
    "old computers",
    "bees",
    "a garden",
    "volcanoes",
    "the heart",
    "money",
    "a birthday party",
    "train travel",
    "the sea",
    "dreams",
    "wood",
    "a small shop",
    "sleep",
    "snow",
    "coffee",
    "libraries",
    "a violin",
    "glass",
    "mountains",
    "the telephone",
    "soil",
    "dogs",
)
REQUESTS = (
    "What is {}?", "Explain {} to a child.", "Write a short poem about {}.", "List ten facts about {}.",
    "Make a table with five rows about {}.", "Write a short story about {}.", "Give me 20 words that fit {}.",
    "Write a Python class for {} with a few methods.", "Write a song about {} with a refrain.",
    "What are the advantages and disadvantages of {}?", "Write an email to a friend about {}.",
    "Give me a JSON list of six things to do with {}.", "Translate to French: I like {}.",
    "Write a dialogue of two friends who talk about {}.", "How does {} change in a year? Make a list by month.",
    "Write a shopping list for {}.", "Write HTML for a page about {}.", "Tell me a joke about {}.",
    "Write a quiz of five questions about {}, with answers.", "Compare {} with the sun in a table.",
    "Write a SQL table for {} and insert ten rows.", "Write a haiku, then a limerick, about {}.",
    "Explain {} step by step.", "Write unit tests in Python for a function that counts {}.",
    "Write the numbers from 1 to 40, and then a sentence about {}.", "Summarise what you know of {} in five points.",
    "Write a C program that prints a picture of {} with asterisks.", "Write a recipe or a manual for {}.",
)  # fmt: skip
_NUMBER = re.compile(r"[0-9]+")


@dataclass
class Written:
    """A reply, and where the guard would have ended it."""

    n: int
    question: str
    tokens: int
    nearness: float
    """Most tokens of a repetition, as a share of those that make a loop."""
    stopped_at: int | None
    """Tokens at which it would have been ended."""
    text: str

    @property
    def is_counted(self) -> bool:
        """Whether many lines in a row differ in their number alone."""
        kinds = [_NUMBER.sub("0", line).strip() for line in self.text.split("\n")]
        runs = (len(list(group)) for kind, group in itertools.groupby(kinds) if len(kind) > 3 and "0" in kind)
        return max(runs, default=0) >= COUNTED_LINES


class Listener:
    """Follows a reply as the guard does."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._watch, self._guard = LoopWatch(), LoopGuard(piece)
        self._n_tokens, self.nearness = 0, 0.0
        self.stopped_at: int | None = None

    def note(self, generated: Any) -> None:
        """The reply has another token."""
        self._n_tokens += 1
        self._watch.note(generated.token_id)
        if self._watch.period:
            nearness = self._watch.n_tokens / (COPIES * self._watch.period + MORE_TOKENS)
            self.nearness = max(self.nearness, nearness)
        if self._guard.note(generated.token_id) and self.stopped_at is None:
            self.stopped_at = self._n_tokens


def questions() -> Iterator[str]:
    """Yield every question once, in an order that never changes."""
    pairs = list(itertools.product(REQUESTS, SUBJECTS))
    random.Random(46).shuffle(pairs)
    for request, subject in pairs:
        yield request.format(subject)


def write_replies(path: Path, ns: Sequence[int], most_tokens: int, threads: int) -> Iterator[Written]:
    """Yield a reply for each number, with a sampling seed of that number."""
    model = Model.open(path, threads=threads)
    session, chat, tokenizer = model.session(N_CTX), model.chat(), model.tokenizer
    sampling = make_sampling(built_in_settings(), model, ThinkingMode())
    asked = list(questions())
    for n in ns:
        question = asked[n % len(asked)]
        chat.start(None)
        listener = Listener(tokenizer.spelled_bytes)
        reply = Reply(
            session,
            chat.add_user(question),
            replace(sampling, seed=n),
            max_tokens=most_tokens,
            stop=chat.stops,
            on_token=listener.note,
        )
        for _ in reply:
            pass
        yield Written(n, question, len(reply.ids), round(listener.nearness, 3), listener.stopped_at, reply.text)
    session.close()
    model.close()


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
    known = [Written(**json.loads(line)) for line in lines]
    with chosen.out.open("a", encoding="utf-8") as file:
        for one in write_replies(chosen.model, range(len(known), chosen.replies), chosen.tokens, chosen.threads):
            file.write(json.dumps(asdict(one)) + "\n")
            file.flush()
            known.append(one)
    stopped = [one for one in known if one.stopped_at is not None]
    near = sorted((one for one in known if one.stopped_at is None and one.nearness >= NEAR), key=lambda o: -o.nearness)
    counted = [one for one in known if one.is_counted]
    for title, found in (("would be ended", stopped), ("near", near), ("counted", counted)):
        for one in found:
            print(f"---- {title}: {one.n} {one.question!r}, {one.tokens} tokens, nearness {one.nearness}")
            print(one.text[-400:])
    print(f"==== {len(known)} replies, {sum(one.tokens for one in known)} tokens: {len(stopped)} would be ended,")
    print(f"==== {len(near)} are near to it, {len(counted)} count")


if __name__ == "__main__":
    main()
