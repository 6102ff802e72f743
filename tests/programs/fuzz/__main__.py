"""The command: ``python -m tests.programs.fuzz TARGET --minutes N [--seed S]``, or ``--replay FILE``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.programs.fuzz import kept
from tests.programs.fuzz.campaign import Campaign
from tests.programs.fuzz.targets import TARGETS
from tests.programs.fuzz.worker import Worker


def main(arguments: list[str] | None = None) -> int:
    """Return 0 where nothing failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.fuzz", description="Fuzz a part of Jalopy."
    )
    parser.add_argument("target", choices=list(TARGETS))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--seed", type=int, help="the same seed tries the same inputs (default: of the clock)"
    )
    parser.add_argument("--replay", type=Path, help="run this one input and say what becomes of it")
    parser.add_argument(
        "--keep", type=Path, default=kept.DIRECTORY, help="where inputs that fail are written"
    )
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return replay(options.target, options.replay)
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    print(f"{options.target}: {options.minutes:g} minutes with seed {seed}", flush=True)
    campaign = Campaign(
        options.target, seed, options.keep, say=lambda line: print(line, flush=True)
    )
    return 1 if campaign.run(60 * options.minutes).failed else 0


def replay(target: str, path: Path) -> int:
    """Run one input in a process of its own and print its outcome."""
    with Worker(target) as worker:
        result = worker.run(kept.read_input(path))
    print(f"FAILED: {result.fault}" if result.fault else f"holds: {result.outcome}")
    return 1 if result.fault else 0


if __name__ == "__main__":
    sys.exit(main())
