"""Steps of a long run, in order: the same for the same seed, on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

WEIGHTS = {
    "turn": 14, "long_turn": 4, "markdown_turn": 5, "paste": 5, "stop": 9, "queue": 3,
    "regenerate": 4,
    "continue": 4, "edit": 5, "edit_reply": 2, "fork": 3, "new": 3, "older": 4, "title": 1,
    "delete": 1,
    "switch_model": 4, "threads": 3, "read_file": 2, "copy": 1, "compare": 3, "screens": 7,
    "palette": 3,
    "theme": 3, "scroll": 2, "search": 2, "open_document": 2, "resize": 7, "suspend": 3,
    "file_limit": 1,
    "full_disk": 1,
}  # fmt: skip
"""Steps that leave the chat running, and how often each comes."""
ENDINGS = (
    "kill_child", "kill_supervisor", "terminate", "hang_up_signal", "quit", "kill_child_writing",
    "close_terminal",
    "terminate_writing", "interrupt_twice", "kill_supervisor_writing", "hang_up_writing",
    "terminate_child",
    "quit_writing", "read_only_disk", "interrupt_signal",
)  # fmt: skip
"""Steps that end the chat and start it again; all come in turn, in an order of the seed's."""
LONG_LIFE = {
    "turn": 30, "markdown_turn": 4, "regenerate": 10, "switch_model": 6, "search": 7,
    "open_document": 7, "new": 3, "older": 5, "stop": 4, "edit": 3, "screens": 3,
}  # fmt: skip
"""Steps of one process that is used for hours and never ends."""
LIFE_STEPS = (12, 6, 10, 4, 40, 8, 5, 300)
"""Steps between two endings, again and again; the longest shows whether memory grows."""


@dataclass(frozen=True)
class Step:
    """Step of a run; ``rng`` decides all its details."""

    number: int
    kind: str
    seed: str

    def rng(self) -> Random:
        """Return chance that is the step's own, so that what an earlier step drew changes nothing
        here."""
        return Random(self.seed)


def plan(seed: int) -> Iterator[Step]:
    """Yield steps without end."""
    chance = Random(seed)
    endings: list[str] = []
    lengths: list[int] = []
    number = until_ending = 0
    while True:
        lengths = lengths or list(LIFE_STEPS)
        until_ending = lengths.pop(0)
        for _ in range(until_ending):
            step_name = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            yield Step(number, step_name, f"{seed}:{number}")
            number += 1
        endings = endings or chance.sample(ENDINGS, len(ENDINGS))
        yield Step(number, endings.pop(), f"{seed}:{number}")
        number += 1


def long_life(seed: int) -> Iterator[Step]:
    """Yield steps without end that leave one process running."""
    chance = Random(seed)
    for number in count():
        step_name = chance.choices(list(LONG_LIFE), list(LONG_LIFE.values()))[0]
        yield Step(number, step_name, f"{seed}:{number}")
