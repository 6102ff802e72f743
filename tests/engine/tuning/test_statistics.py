"""Medians, their intervals, and the winning setting, from numbers written by hand."""

import pytest

from engine.tuning.statistics import Contest, median_interval


def contest(rates: dict[int, list[float]]) -> Contest:
    result = Contest(list(rates))
    for setting, values in rates.items():
        for number, rate in enumerate(values):
            result.add(number, setting, rate)
    return result


@pytest.mark.parametrize(
    ("n", "from_each_end"),
    # 1 - 2 * 1/32 = 0.94 for five values; 1 - 2 * (1 + 8)/256 = 0.93 for eight without the
    # outermost ones.
    [(5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (12, 3)],
)
def test_the_interval_covers_ninety_per_cent(n: int, from_each_end: int) -> None:
    interval = median_interval([float(value) for value in range(1, n + 1)])
    assert (interval.low, interval.high) == (from_each_end, n + 1 - from_each_end)
    assert interval.median == (n + 1) / 2
    assert interval.is_sure


@pytest.mark.parametrize("values", [[3.0], [3.0, 5.0], [3.0, 9.0, 4.0, 5.0]])
def test_few_values_give_their_range_marked_as_unsure(values: list[float]) -> None:
    interval = median_interval(values)
    assert (interval.low, interval.high, interval.is_sure) == (min(values), max(values), False)


def test_one_disturbed_sample_moves_neither_median_nor_interval() -> None:
    calm = median_interval([5.0, 5.1, 5.0, 5.2, 5.1, 5.0, 5.1, 5.1])
    disturbed = median_interval([5.0, 5.1, 5.0, 5.2, 5.1, 5.0, 5.1, 0.2])
    assert disturbed.median == pytest.approx(calm.median, abs=0.06)
    assert disturbed.low == 5.0


def test_the_faster_setting_wins_where_the_intervals_separate() -> None:
    result = contest({1: [3.0, 3.1, 3.0, 3.0, 3.1], 2: [3.3, 3.4, 3.3, 3.3, 3.4]})
    assert (result.leader, result.winner) == (2, 2)
    assert result.is_settled
    assert result.is_beaten(1)


def test_within_noise_the_cheaper_setting_wins() -> None:
    result = contest({2: [5.0, 5.2, 4.9, 5.1, 5.0], 3: [5.1, 5.0, 5.1, 5.0, 5.2]})
    assert (result.leader, result.winner) == (3, 2)
    assert not result.is_settled


def test_a_gain_of_two_per_cent_is_settled_but_too_small() -> None:
    result = contest({2: [5.0] * 5, 3: [5.1] * 5})
    assert result.winner == 2
    assert result.is_settled


def test_drift_common_to_all_settings_hides_no_difference() -> None:
    clock = [1.0, 0.9, 0.7, 0.6, 0.5, 0.5]
    result = contest({1: [10 * c for c in clock], 2: [11 * c for c in clock]})
    slow = result.rate(1)
    fast = result.rate(2)
    assert slow is not None
    assert fast is not None
    assert slow.high > fast.low  # the plain intervals overlap
    assert result.winner == 2
    assert result.is_settled


def test_a_clearly_slower_setting_is_dropped_after_two_passes() -> None:
    result = Contest([1, 2, 3])
    for number in range(2):
        for setting, rate in ((1, 3.0), (2, 5.0), (3, 4.6)):
            result.add(number, setting, rate)
        result.drop_slow()
        assert result.live == ([1, 2, 3] if number == 0 else [2, 3])
    assert result.rate(1) is not None
    assert result.winner == 2


def test_a_large_gain_counts_although_one_pass_was_disturbed() -> None:
    result = contest({1: [3.0] * 5, 2: [5.0, 5.1, 2.5, 5.0, 5.0]})
    assert result.winner == 2


def test_nothing_measured_has_neither_leader_nor_winner() -> None:
    result = Contest([1, 2])
    assert (result.leader, result.winner, result.is_settled) == (None, None, False)


def test_after_half_a_pass_the_measured_setting_wins() -> None:
    result = Contest([1, 2, 3])
    result.add(0, 2, 5.0)
    assert result.winner == 2
    assert not result.is_settled


def test_a_single_setting_is_settled_at_once() -> None:
    result = Contest([1])
    result.add(0, 1, 5.0)
    assert result.is_settled
    assert result.winner == 1


def test_one_disturbed_pass_of_two_neither_drops_nor_beats() -> None:
    result = contest({1: [10.0, 10.0], 2: [14.0, 5.0], 3: [14.0, 14.0]})
    result.drop_slow()
    assert result.live == [2, 3]
    assert not result.is_beaten(2)


def test_two_passes_that_disagree_drop_nothing() -> None:
    pinned = [42.0, 42.0]
    unpinned = [41.5, 24.0]  # the second pass was disturbed: 1 % or 75 %
    result = contest({1: unpinned, 2: pinned})
    result.drop_slow()
    assert result.live == [1, 2]
    assert not result.is_settled
    for number in range(2, 8):
        result.add(number, 1, 40.0)
        result.add(number, 2, 40.4)
    result.drop_slow()
    assert result.live == [1, 2]
    assert result.is_settled
    assert result.winner == 1
