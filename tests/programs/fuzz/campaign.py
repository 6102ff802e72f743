"""A campaign: inputs of one target for some minutes, progress and figures in lines, failures
kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.programs.fuzz import kept
from tests.programs.fuzz.targets import load
from tests.programs.fuzz.worker import Result, Worker, mutated

PROGRESS_EVERY_S = 30.0
_MOST_CORPUS = 2000


@dataclass
class Figures:
    """Progress of a campaign."""

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    largest_bytes: int = 0
    seeds_added: int = 0
    failed: dict[str, Path] = field(default_factory=dict)
    """By what distinguishes them: the first input of each fault."""

    def note(self, result: Result) -> bool:
        """Count a result; return whether its input is worth changing further."""
        is_new = result.n_new_lines > 0 or result.outcome not in self.outcomes
        self.executions += 1
        self.outcomes[result.outcome] += 1
        self.slowest_s = max(self.slowest_s, result.seconds)
        self.largest_bytes = max(self.largest_bytes, result.peak_bytes)
        return is_new and not result.fault

    def line(self, seconds: float) -> str:
        """All of it in one line."""
        return (
            f"{self.executions} executions in {seconds:.0f} s "
            f"({self.executions / max(seconds, 1e-9):.1f}/s), "
            f"{len(self.outcomes)} distinct outcomes, slowest {self.slowest_s:.2f} s, "
            f"largest memory {self.largest_bytes / 2**20:.0f} MB, {self.seeds_added} seeds added, "
            f"{len(self.failed)} distinct failures"
        )


class Campaign:
    """Fuzzes one target.

    Args:
        name: a name that ``load`` knows.
        keep_in: where inputs that fail are written.
        say: prints a line.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        keep_in: Path = kept.DIRECTORY,
        say: Callable[[str], object] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = load(name)
        self._name = name
        self._rng = Random(seed)
        self._keep_in = keep_in
        self._say = say
        self._clock = clock
        self.figures = Figures()

    def run(self, seconds: float, most_executions: int | None = None) -> Figures:
        """Run the seeds, then changed ones, until the time is over."""
        started_s = said_s = self._clock()
        corpus = self._target.seeds() + [
            kept.read_input(path) for path in kept.kept(self._name, self._keep_in)
        ]
        waiting = list(corpus)
        n_seeds = len(corpus)
        with Worker(self._name) as worker:
            while (
                now_s := self._clock()
            ) - started_s < seconds and self.figures.executions != most_executions:
                if now_s - said_s >= PROGRESS_EVERY_S:
                    said_s = now_s
                    self._say(f"{self._name}: {self.figures.line(now_s - started_s)}")
                data = waiting.pop(0) if waiting else mutated(self._target, self._rng, corpus)
                is_seed = self.figures.executions < n_seeds
                result = worker.run(data)
                if self.figures.note(result) and not is_seed and len(corpus) < _MOST_CORPUS:
                    corpus.append(data)
                    self.figures.seeds_added += 1
                if result.fault and result.outcome not in self.figures.failed:
                    self._fail(data, result)
        self._say(f"{self._name}: {self.figures.line(self._clock() - started_s)}")
        return self.figures

    def _fail(self, data: bytes, result: Result) -> None:
        path = self.figures.failed[result.outcome] = kept.keep(self._name, data, self._keep_in)
        self._say(
            f"FAILED {self._name}: {result.fault}\n  replay: python -m tests.programs.fuzz {self._name} "
            f"--replay {path}"
        )
