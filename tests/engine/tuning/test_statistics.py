"""Medians, their intervals, and which setting wins: all from numbers written down by hand."""

import pytest

from engine.tuning.statistics import Contest, median_interval


def contest(rates: dict[int, list[float]]) -> Contest:
    made = Contest(list(rates))
    for setting, values in rates.items():
        for number, rate in enumerate(values):
            made.add(number, setting, rate)
    return made


@pytest.mark.parametrize(
    ("n", "from_each_end"),
    # 1 - 2 * 1/32 = 0.94 for five values; 1 - 2 * (1 + 8)/256 = 0.93 for eight without the
    # outermost ones.
    [(5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (12, 3)],
)
def test_the_interval_leaves_out_what_ninety_per_cent_allow(n: int, from_each_end: int) -> None:
    found = median_interval([float(value) for value in range(1, n + 1)])
    assert (found.low, found.high) == (from_each_end, n + 1 - from_each_end)
    assert found.median == (n + 1) / 2
    assert found.is_sure


@pytest.mark.parametrize("values", [[3.0], [3.0, 5.0], [3.0, 9.0, 4.0, 5.0]])
def test_few_values_give_their_range_and_admit_it(values: list[float]) -> None:
    found = median_interval(values)
    assert (found.low, found.high, found.is_sure) == (min(values), max(values), False)


def test_one_disturbed_sample_moves_neither_median_nor_interval() -> None:
    calm = median_interval([5.0, 5.1, 5.0, 5.2, 5.1, 5.0, 5.1, 5.1])
    disturbed = median_interval([5.0, 5.1, 5.0, 5.2, 5.1, 5.0, 5.1, 0.2])
    assert disturbed.median == pytest.approx(calm.median, abs=0.06)
    assert disturbed.low == 5.0


def test_the_faster_setting_wins_where_the_intervals_separate() -> None:
    found = contest({1: [3.0, 3.1, 3.0, 3.0, 3.1], 2: [3.3, 3.4, 3.3, 3.3, 3.4]})
    assert (found.leader, found.winner) == (2, 2)
    assert found.is_settled
    assert found.is_beaten(1)


def test_within_noise_the_cheaper_setting_is_kept() -> None:
    found = contest({2: [5.0, 5.2, 4.9, 5.1, 5.0], 3: [5.1, 5.0, 5.1, 5.0, 5.2]})
    assert (found.leader, found.winner) == (3, 2)
    assert not found.is_settled


def test_a_gain_of_two_per_cent_is_settled_and_not_worth_it() -> None:
    found = contest({2: [5.0] * 5, 3: [5.1] * 5})
    assert found.winner == 2
    assert found.is_settled


def test_drift_that_hits_all_settings_alike_hides_no_difference() -> None:
    clock = [1.0, 0.9, 0.7, 0.6, 0.5, 0.5]
    found = contest({1: [10 * c for c in clock], 2: [11 * c for c in clock]})
    slow = found.rate(1)
    fast = found.rate(2)
    assert slow is not None
    assert fast is not None
    assert slow.high > fast.low  # the plain intervals overlap
    assert found.winner == 2
    assert found.is_settled


def test_a_clearly_slower_setting_is_dropped_after_two_passes() -> None:
    found = Contest([1, 2, 3])
    for number in range(2):
        for setting, rate in ((1, 3.0), (2, 5.0), (3, 4.6)):
            found.add(number, setting, rate)
        found.drop_slow()
        assert found.live == ([1, 2, 3] if number == 0 else [2, 3])
    assert found.rate(1) is not None
    assert found.winner == 2


def test_a_large_gain_counts_although_one_pass_was_disturbed() -> None:
    found = contest({1: [3.0] * 5, 2: [5.0, 5.1, 2.5, 5.0, 5.0]})
    assert found.winner == 2


def test_nothing_measured_has_neither_leader_nor_winner() -> None:
    found = Contest([1, 2])
    assert (found.leader, found.winner, found.is_settled) == (None, None, False)


def test_after_half_a_pass_the_one_that_was_measured_wins() -> None:
    found = Contest([1, 2, 3])
    found.add(0, 2, 5.0)
    assert found.winner == 2
    assert not found.is_settled


def test_one_setting_alone_is_settled_at_once() -> None:
    found = Contest([1])
    found.add(0, 1, 5.0)
    assert found.is_settled
    assert found.winner == 1


def test_one_disturbed_pass_of_two_neither_drops_nor_beats() -> None:
    found = contest({1: [10.0, 10.0], 2: [14.0, 5.0], 3: [14.0, 14.0]})
    found.drop_slow()
    assert found.live == [2, 3]
    assert not found.is_beaten(2)
