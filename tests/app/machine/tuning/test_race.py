"""Lanes of a race: which there are, and how they are drawn while they are replayed."""

from __future__ import annotations

import pytest

from app.machine.tuning.race import Race, RaceLane, figure_lines, race_counts, race_rows
from app.text.glyphs import ASCII, BLOCKS

WORDS = ("An", " old", " laptop", " hums", ".")


def lane(n_threads: int, token_s: float) -> RaceLane:
    return RaceLane(n_threads, tuple(token_s * n for n in range(len(WORDS))), WORDS)


RACE = Race((1, 2), (lane(1, 1.0), lane(2, 0.5)))


@pytest.mark.parametrize(
    ("most", "usual", "counts"),
    [
        (1, 1, (1,)),
        (2, 2, (1, 2)),
        (4, 2, (1, 2, 4)),
        (6, 6, (1, 2, 4, 6)),
        (20, 8, (1, 8, 16, 20)),
    ],
)
def test_a_race_has_at_most_four_lanes(most: int, usual: int, counts: tuple[int, ...]) -> None:
    assert race_counts(most, usual) == counts


def test_each_lane_shows_what_was_written_by_a_time() -> None:
    assert [text.split() for text in race_rows(RACE, 1.0, 60, 4, BLOCKS)][2] == [
        "An",
        "old",
        "An",
        "old",
        "laptop",
    ]
    rows = race_rows(RACE, 9.0, 60, 4, BLOCKS)
    assert rows[0].split() == ["1", "thread", "1.0", "tok/s", "2", "threads", "2.0", "tok/s"]
    assert rows[3].split() == ["✓", "4.0", "s", "✓", "2.0", "s"]


def test_a_lane_that_is_not_written_says_so() -> None:
    rows = race_rows(Race((1, 2, 4), (lane(1, 1.0),)), 0.0, 78, 6, BLOCKS)
    assert rows[1].split() == ["1.0", "tok/s", "writes", "now", "waits"]


def test_lanes_without_room_are_drawn_below_and_nothing_is_wider() -> None:
    race = Race((1, 2, 4, 8), tuple(lane(n, 1.0 / n) for n in (1, 2, 4, 8)))
    for width, glyphs in ((78, BLOCKS), (40, ASCII), (20, BLOCKS), (8, ASCII)):
        rows = race_rows(race, 2.0, width, 12, glyphs)
        assert len(rows) <= 12
        assert max(map(len, rows)) <= width


def test_control_characters_of_a_model_do_not_reach_the_terminal() -> None:
    race = Race((1,), (RaceLane(1, (0.0, 1.0), ("\x1b[2J", "bad")),))
    assert all("\x1b" not in row for row in race_rows(race, 5.0, 40, 6, BLOCKS))


def test_figures_compare_with_one_thread() -> None:
    assert figure_lines(RACE) == [
        "1 thread      1.0 tok/s",
        "2 threads     2.0 tok/s  2.0 times one thread",
    ]
    assert figure_lines(Race((1,), (RaceLane(1),))) == ["1 thread     0.00 tok/s"]
