from itertools import accumulate

import pytest

from app.machine.sensors import page_faults
from app.machine.sensors.sample import MachineSample
from app.machine.sensors.token_speed import Stutter, StutterWatch, cause_of, excess_at

SLOW = Stutter(token=20, begin_s=110.2, end_s=110.9)


def times_with(slow: dict[int, float], n: int = 60, gap_s: float = 0.1) -> list[float]:
    times = []
    now_s = 100.0
    for token in range(n):
        times.append(now_s)
        now_s += slow.get(token + 1, gap_s)
    return times


def sample(at_s: float, **readings: object) -> MachineSample:
    return MachineSample(at_s=at_s, interval_s=1.0, **readings)


def test_gaps_far_above_the_median_are_found_once():
    watch = StutterWatch()
    times = times_with({20: 0.9, 30: 0.14, 40: 0.6})
    growing: list[float] = []
    for time_s in times:
        growing.append(time_s)
        watch.follow(growing)
    assert [stutter.token for stutter in watch.found] == [20, 40]
    assert watch.median_gap_s == pytest.approx(0.1)


def test_a_fast_model_does_not_stutter_over_a_few_milliseconds():
    watch = StutterWatch()
    watch.follow(times_with({20: 0.03, 30: 0.2}, gap_s=0.002))
    assert [stutter.token for stutter in watch.found] == [30]


def test_the_median_stays_right_over_thousands_of_tokens():
    watch = StutterWatch()
    watch.follow(times_with(dict.fromkeys(range(0, 3000, 10), 0.3), n=3000))
    assert watch.median_gap_s == pytest.approx(0.1)


def test_all_stutters_of_a_long_reply_are_counted():
    watch = StutterWatch()
    watch.follow(times_with(dict.fromkeys(range(10, 2000, 20), 0.9), n=2000))
    assert watch.count == 100
    watch.follow([])
    assert watch.count == 0


def test_a_new_reply_starts_again():
    watch = StutterWatch()
    watch.follow(times_with({20: 0.9}))
    watch.follow([])
    assert watch.found == []
    assert watch.median_gap_s == 0.0


@pytest.mark.parametrize(
    ("readings", "cause"),
    [
        ({"throttled": 2, "others_cores": 0.4}, "the processor is too hot"),
        ({"others_cores": 0.8}, "other programs use 0.8 cores"),
        ({"clock_ghz": 1.2}, "the processor runs at 1.2 of 3.1 GHz"),
        ({"interface_share": 0.5}, "drawing the screen takes 50 % of a core"),
        ({"others_cores": 0.1, "clock_ghz": 3.0, "interface_share": 0.02}, "no cause seen"),
        ({}, "no cause seen"),
    ],
)
def test_the_cause_is_read_from_the_sample_of_that_second(readings, cause):
    samples = [
        sample(109.5, clock_ghz=3.1, others_cores=2.0),
        sample(110.5, **readings),
        sample(112.5),
    ]
    assert cause_of(SLOW, {}, samples) == cause


def test_page_faults_are_known_per_token_and_come_first():
    samples = [sample(110.5, others_cores=1.0)]
    assert cause_of(SLOW, {20: 212}, samples) == "212 pages from disk"
    assert cause_of(SLOW, {20: 1}, []) == "1 page from disk"
    assert cause_of(SLOW, {19: 212}, samples) == "other programs use 1.0 cores"


def test_a_stutter_without_samples_has_no_cause():
    assert cause_of(SLOW, {}, []) == ""
    assert cause_of(SLOW, {}, [sample(500.0, others_cores=1.0)]) == ""
    assert cause_of(SLOW, {}, [sample(110.0, others_cores=1.0)]) == "looking for the cause"


def test_the_cause_is_open_until_the_whole_gap_is_sampled():
    watch = StutterWatch()
    watch.follow(times_with({20: 0.9}))
    end_s = watch.found[0].end_s
    early = [sample(end_s - 0.5)]
    assert watch.newest(3, {}, early)[0][1] == "no cause seen"
    seen = [*early, sample(end_s + 0.5, others_cores=1.0)]
    assert watch.newest(3, {}, seen)[0][1] == "other programs use 1.0 cores"
    assert watch.newest(3, {}, [])[0][1] == "other programs use 1.0 cores"


def test_faults_recorded_twice_for_a_token_add_up(monkeypatch):
    counts = iter([10, 13, 14])
    monkeypatch.setattr(page_faults, "major_faults", lambda: next(counts))
    log = page_faults.FaultLog()
    log.note(5)
    log.note(5)  # at the end of the reply, for faults after its last token
    assert log.by_token() == {4: 4}
    assert log.total == 4


def test_page_fault_time_is_the_excess_of_the_affected_tokens():
    times = times_with({20: 0.9, 30: 0.5})
    assert excess_at(times, {20: 5}) == pytest.approx(0.8)
    assert excess_at(times, {20: 5, 30: 1}) == pytest.approx(1.2)
    assert excess_at(times, {0: 5, 21: 1, 999: 1}) == pytest.approx(0.0, abs=1e-6)
    assert excess_at([], {3: 1}) == 0.0


def test_idle_cores_do_not_count_for_the_clock():
    idle = [sample(at_s, clock_ghz=3.9, core_loads=(0.1, 0.05)) for at_s in (100.5, 101.5, 102.5)]
    busy = [sample(at_s, clock_ghz=3.1, core_loads=(1.0, 1.0)) for at_s in (108.5, 109.5, 110.5)]
    assert cause_of(SLOW, {}, [*idle, *busy, sample(112.5)]) == "no cause seen"


def test_a_token_during_a_change_of_threads_is_no_stutter():
    watch = StutterWatch()
    times = times_with({30: 2.4, **dict.fromkeys(range(31, 60), 0.35)})
    watch.follow(times, [times[30] - 0.01])
    assert watch.found == []
    assert watch.median_gap_s == pytest.approx(0.35)


def test_steps_of_several_guessed_tokens_are_no_stutters():
    gaps = [0.1] * 4 + [0.24, 0.0004, 0.0003, 0.0003] * 20
    watch = StutterWatch()
    watch.follow(list(accumulate(gaps, initial=100.0)))
    assert watch.count == 0
    times = list(accumulate([*gaps, 0.9], initial=100.0))
    watch.follow(times)
    assert watch.count == 1
    assert excess_at(times, {len(gaps) + 1: 1}) == pytest.approx(0.66)
