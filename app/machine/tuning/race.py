"""A race of thread counts: one sentence written with each, and replayed side by side."""

from __future__ import annotations

import textwrap

from app.text import figures
from app.text.clean_text import clean_text
from app.text.glyphs import Glyphs
from app.text.record import record

MOST_LANES = 4
LEAST_COLUMNS = 19
"""Columns that a lane needs."""
_GAP = 2
_HEAD_ROWS = 2


@record
class RaceLane:
    """The sentence as one thread count wrote it."""

    n_threads: int
    times_s: tuple[float, ...] = ()
    """Time of each token since the first one."""
    texts: tuple[str, ...] = ()
    """Text of each token."""

    @property
    def tps(self) -> float:
        """Tokens per second; 0 with fewer than two tokens."""
        if len(self.times_s) < 2 or self.times_s[-1] <= 0:
            return 0.0
        return (len(self.times_s) - 1) / self.times_s[-1]

    def written(self, elapsed_s: float) -> int:
        """Return the number of tokens that were written by a time."""
        return sum(time_s <= elapsed_s for time_s in self.times_s)


@record
class Race:
    """All lanes so far, the first one with one thread."""

    counts: tuple[int, ...]
    lanes: tuple[RaceLane, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether every lane is written, so that they can be replayed."""
        return len(self.lanes) == len(self.counts)

    @property
    def duration_s(self) -> float:
        """Time of the slowest lane."""
        return max((lane.times_s[-1] for lane in self.lanes if lane.times_s), default=0.0)


def race_counts(most: int, usual: int) -> tuple[int, ...]:
    """Return the thread counts of a race: 1, 2, 4 ..., the usual count and the largest one.

    At most ``MOST_LANES``: the largest ones, and one thread for comparison.
    """
    counts = {usual, most, *(1 << power for power in range(1, 10))}
    possible = sorted(count for count in counts if 2 <= count <= most)
    return (1, *possible[1 - MOST_LANES :])


def figure_lines(race: Race) -> list[str]:
    """Return a line for each lane: threads, speed, and how many times the speed of one thread."""
    base_tps = race.lanes[0].tps if race.lanes else 0.0
    lines = []
    for lane in race.lanes:
        text = f"{figures.counted(lane.n_threads, 'thread'):<11} {figures.rate(lane.tps):>5} tok/s"
        if lane.n_threads != 1 and base_tps:
            text += f"  {lane.tps / base_tps:.1f} times one thread"
        lines.append(text)
    return lines


def race_rows(race: Race, elapsed_s: float, width: int, n_rows: int, glyphs: Glyphs) -> list[str]:
    """Draw the lanes side by side as they were after ``elapsed_s``.

    Lanes that do not fit next to each other are drawn below. Before a lane is written, its column
    says so.
    """
    n_columns = max(1, min(len(race.counts), (width + _GAP) // (LEAST_COLUMNS + _GAP)))
    columns = (width + _GAP) // n_columns - _GAP
    groups = [
        range(start, min(start + n_columns, len(race.counts)))
        for start in range(0, len(race.counts), n_columns)
    ]
    rows_each = max(_HEAD_ROWS + 1, n_rows // len(groups))
    rows: list[str] = []
    for group in groups:
        cells = [_cell_rows(race, index, elapsed_s, columns, rows_each, glyphs) for index in group]
        rows += [(" " * _GAP).join(parts).rstrip() for parts in zip(*cells, strict=True)]
    return rows[:n_rows]


def _cell_rows(
    race: Race, index: int, elapsed_s: float, columns: int, n_rows: int, glyphs: Glyphs
) -> list[str]:
    """Return the rows of a lane: threads and speed, progress, and the text so far."""
    head = figures.counted(race.counts[index], "thread")
    if not race.is_over:
        status = "waits"
        if index < len(race.lanes):
            status = f"{figures.rate(race.lanes[index].tps)} tok/s"
        elif index == len(race.lanes):
            status = "writes now"
        rows = [head, status]
    else:
        lane = race.lanes[index]
        n_written = lane.written(elapsed_s)
        is_done = n_written == len(lane.times_s)
        filled = columns * n_written // max(1, len(lane.times_s))
        head += f" {figures.rate(lane.tps)} tok/s"
        bar = glyphs.gauge_full * filled + glyphs.gauge_empty * (columns - filled)
        text = clean_text("".join(lane.texts[:n_written])).strip()
        lines = textwrap.wrap(text, columns) or [""]
        if is_done and lane.times_s:
            lines.append(f"{glyphs.good} {figures.seconds(lane.times_s[-1])}")
        rows = [head, bar, *lines[-(n_rows - _HEAD_ROWS) :]]
    rows += [""] * (n_rows - len(rows))
    return [f"{row[:columns]:<{columns}}" for row in rows[:n_rows]]
