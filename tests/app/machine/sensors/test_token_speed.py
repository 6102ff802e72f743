import pytest

from app.machine.sensors.token_speed import RateHistory, rate_over


def token_times(gap_s: float, n: int, start_s: float = 100.0) -> list[float]:
    return [start_s + gap_s * i for i in range(n)]


@pytest.mark.parametrize("window_s", [1.0, 10.0])
@pytest.mark.parametrize("gap_s", [0.01, 0.2, 0.7, 3.0])
def test_a_steady_reply_has_one_rate_in_every_window(gap_s, window_s):
    times = token_times(gap_s, 40)
    for late in (0.0, 0.3, 0.9):
        assert rate_over(times, times[-1] + late * gap_s, window_s) == pytest.approx(1 / gap_s)


def test_a_window_ignores_earlier_tokens():
    times = token_times(0.1, 50) + token_times(0.5, 30, start_s=105.4)
    assert rate_over(times, times[-1], 1.0) == pytest.approx(2.0)
    assert rate_over(times, times[-1], 10.0) == pytest.approx(2.0, rel=0.1)


def test_a_stall_shows_as_a_falling_rate():
    times = token_times(0.2, 20)
    rates = [rate_over(times, times[-1] + waited_s, 1.0) for waited_s in (0.0, 1.0, 5.0, 50.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.02, rel=0.05)


def test_one_token_has_no_rate():
    assert (
        rate_over([], 5.0, 1.0)
        == rate_over([4.0], 5.0, 1.0)
        == rate_over([4.0, 4.0], 4.0, 1.0)
        == 0.0
    )


def test_a_steady_reply_has_a_flat_history_at_any_speed():
    for gap_s in (0.003, 0.3, 0.9, 2.5):
        history = RateHistory()
        history.follow(token_times(gap_s, int(20 / gap_s)))
        assert history.rates_tps() == pytest.approx([1 / gap_s] * len(history.rates_tps()))
        assert len(history.rates_tps()) in (18, 19, 20)


def test_the_history_does_not_depend_on_the_update_rate():
    times = [100 + 0.17 * i + 0.05 * (i % 3) for i in range(100)]
    asked_once = RateHistory()
    asked_often = RateHistory()
    growing = []
    asked_once.follow(times)
    for time_s in times:
        growing.append(time_s)
        asked_often.follow(growing)
    assert asked_often.rates_tps() == pytest.approx(asked_once.rates_tps())


def test_a_stall_is_a_dip_and_a_new_reply_starts_again():
    history = RateHistory()
    history.follow([*token_times(0.1, 30), *token_times(0.1, 30, start_s=107.0)])
    rates = history.rates_tps()
    assert rates[0] == pytest.approx(10)
    assert max(rates[3:6]) < 0.3
    assert rates[8] == pytest.approx(10)
    history.follow(token_times(0.5, 6))
    assert history.rates_tps() == pytest.approx([2, 2, 2])
    history.follow([])
    assert history.rates_tps() == []
