import dataclasses
from typing import Any

import pytest

from app.machine.sensors.delays import QuotaUse
from app.machine.sensors.sample import Battery, ClockLimit, Governor, MachineSample
from app.machine.sensors.speed_causes import (
    Cause,
    SpeedReadings,
    SpeedReason,
    bound_text,
    fewer_threads,
    machine_causes,
    samples_between,
    speed_reason,
    usual_clock_ghz,
)
from app.machine.tuning.own_change import own_change
from app.machine.tuning.threads_in_use import ChoiceChange
from app.program.state import TunedChoice
from tests.app.machine.sensors.views import SAMPLE

CALM = dataclasses.replace(
    SAMPLE,
    clock_ghz=2.8,
    governor=Governor("schedutil"),
    battery=Battery(83.0, True),
    core_loads=(1.0, 1.0),
)


def cause_of(**changes: Any) -> tuple[str, float]:
    """Return the largest cause in a second with these readings, and its size in per cent."""
    causes = machine_causes([dataclasses.replace(CALM, **changes)], threads=2)
    if not causes:
        return "", 0
    return causes[0].text, round(100 * causes[0].loss)


@pytest.mark.parametrize(
    ("changes", "text", "percent"),
    [
        ({}, "", 0),
        ({"others_cores": 0.3}, "", 0),
        ({"others_cores": 1.4}, "other programs use 1.4 of 2 cores", 70),
        (
            {"others_cores": 1.0, "waiting_share": 0.8, "interface_share": 0.02},
            "other programs use 1.0 of 2 cores",
            78,
        ),
        # most of the time no thread waits, such as next to a program of a lower priority
        (
            {"others_cores": 1.0, "waiting_share": 0.1},
            "other programs use 1.0 of 2 cores",
            25,
        ),
        (
            {"others_cores": 1.0, "waiting_share": 0.1, "stolen_cores": 0.9},
            "other programs use 1.0 of 2 cores",
            53,
        ),
        ({"n_allowed_cores": 1}, "2 threads share 1 core", 50),
        (
            {"n_allowed_cores": 1, "others_cores": 0.8},
            "other programs use 0.8 of 1 core",
            90,
        ),
        ({"quota": QuotaUse(0.6, 0.9)}, "a CPU quota allows 0.6 of 2 cores", 63),
        ({"quota": QuotaUse(0.6, 0.02)}, "", 0),
        ({"quota": QuotaUse(2.0, 0.5)}, "", 0),
        (
            {"quota": QuotaUse(0.2, 0.9), "waiting_share": 0.8, "others_cores": 1.8},
            "a CPU quota allows 0.2 of 2 cores",
            81,
        ),
        ({"disk_bytes_per_s": 210 << 20}, "reading 210 MB/s from disk", 73),
        (
            {"disk_bytes_per_s": 20 << 20, "disk_stall_share": 0.9},
            "reading 20 MB/s from disk",
            90,
        ),
        (
            {"disk_bytes_per_s": 30 << 20, "swapped_in_bytes_per_s": float(30 << 20)},
            "memory is short: 30 MB/s from swap",
            10,
        ),
        ({"interface_share": 0.6}, "drawing the screen takes 60 % of a core", 60),
    ],
)
def test_each_cause_has_a_size(changes: dict[str, Any], text: str, percent: int) -> None:
    assert cause_of(**changes) == (text, percent)


ON_BATTERY = Battery(80.0, False)
HELD_DOWN = Governor("powersave", "acpi-cpufreq")


@pytest.mark.parametrize(
    ("changes", "text", "percent"),
    [
        ({"clock_ghz": 1.1, "throttled": 3}, "the processor runs at 1.1 of 2.9 GHz: too hot", 62),
        ({"clock_ghz": 1.1, "temperature_c": 97.0},
         "the processor runs at 1.1 of 2.9 GHz: too hot", 62),
        ({"clock_ghz": 2.5, "temperature_c": 97.0}, "", 0),
        ({"clock_ghz": 2.5, "throttled": 1}, "the processor runs at 2.5 of 2.9 GHz: too hot", 14),
        ({"clock_ghz": 0.8, "governor": HELD_DOWN},
         "the processor runs at 0.8 of 2.9 GHz: governor powersave", 72),
        ({"clock_ghz": 1.8, "battery": ON_BATTERY},
         "the processor runs at 1.8 of 2.9 GHz: on battery", 38),
        ({"clock_ghz": 1.2}, "the processor runs at 1.2 of 2.9 GHz", 59),
        ({"clock_ghz": 1.8}, "", 0),
        ({"clock_ghz": 2.5, "battery": ON_BATTERY}, "", 0),
        ({"clock_ghz": None, "throttled": 3}, "the processor is too hot", 30),
        ({"clock_ghz": None, "governor": HELD_DOWN},
         "the governor powersave keeps the clock low", 50),
        ({"clock_ghz": None, "battery": ON_BATTERY}, "the machine runs on battery", 10),
        ({"clock_ghz": None}, "", 0),
    ],
)  # fmt: skip
def test_a_low_clock_has_a_reason(changes: dict[str, Any], text: str, percent: int) -> None:
    assert cause_of(**changes) == (text, percent)


def test_a_disk_costs_at_least_its_share_of_the_bytes() -> None:
    slow = dataclasses.replace(CALM, disk_bytes_per_s=400e6, disk_stall_share=0.2)
    (cause,) = machine_causes([slow], 2, weights_bytes_per_s=600e6)
    assert cause.loss == pytest.approx(2 / 3)
    (cause,) = machine_causes([slow], 2, weights_bytes_per_s=300e6)
    assert cause.loss == 0.95


def test_threads_that_wait_for_a_disk_leave_cores_to_others() -> None:
    sample = dataclasses.replace(
        CALM, disk_bytes_per_s=400e6, others_cores=1.6, waiting_share=0.5, interface_share=0.0
    )
    first, second = machine_causes([sample], 2, weights_bytes_per_s=600e6)
    assert first.text == "reading 381 MB/s from disk"
    assert second == Cause("other programs use 1.6 of 2 cores", 0.5)


def test_free_cores_for_the_other_programs_halve_their_effect() -> None:
    sample = dataclasses.replace(CALM, others_cores=1.0, core_loads=(1.0,) * 8)
    (cause,) = machine_causes([sample], threads=4)
    assert cause == Cause("other programs use 1.0 of 8 cores", 0.0625)


def test_one_busy_second_in_ten_is_no_cause() -> None:
    busy = dataclasses.replace(CALM, others_cores=1.5)
    assert machine_causes([busy, *[CALM] * 9]) == []
    assert machine_causes([busy] * 9)[0].text == "other programs use 1.5 of 2 cores"


def test_samples_without_readings_have_no_cause() -> None:
    assert machine_causes([]) == []
    assert machine_causes([MachineSample(1.0), MachineSample(2.0)], threads=4) == []


def test_an_unstated_highest_clock_is_the_usual_clock() -> None:
    cool = dataclasses.replace(CALM, most_clock_ghz=None)
    idle = dataclasses.replace(cool, clock_ghz=3.9, core_loads=(0.1, 0.0))
    usual_ghz = usual_clock_ghz([idle] * 9 + [cool] * 5)
    assert usual_ghz == 2.8
    (cause,) = machine_causes([dataclasses.replace(cool, clock_ghz=1.0)], 2, usual_ghz)
    assert cause.text == "the processor runs at 1.0 of 2.8 GHz"
    assert usual_clock_ghz([]) == 0.0


def test_a_pi_that_throttles_at_80_degrees_is_too_hot() -> None:
    pi = {"temperature_c": 80.0, "clock_ghz": 1.2, "most_clock_ghz": 1.8, "throttled": None}
    text, loss = cause_of(**pi, clock_limit=ClockLimit.HEAT)
    assert text == "the processor runs at 1.2 of 1.8 GHz: too hot"
    assert loss == 33
    text, _ = cause_of(**pi, clock_limit=ClockLimit.VOLTAGE)
    assert text == "the processor runs at 1.2 of 1.8 GHz: too little voltage"
    text, _ = cause_of(clock_ghz=None, clock_limit=ClockLimit.VOLTAGE)
    assert text == "the power supply gives too little voltage"


def test_a_change_by_the_user_is_a_cause() -> None:
    two = TunedChoice(2, 2)
    change = ChoiceChange(10.0, 11.0, two, TunedChoice(1, 2))
    (cause,) = own_change([change], begin_s=5.0)
    assert cause == Cause("changed from 2 threads to 1 thread", 1.0)
    assert own_change([change], begin_s=12.0) == own_change([], begin_s=0.0) == []
    slow = SpeedReadings(20.0, usual_tps=37.6, memory_share=0.4, causes=[cause])
    text = "changed from 2 threads to 1 thread (usually 37.6 tok/s)"
    assert speed_reason(slow) == SpeedReason(text, is_slow=True)
    usual = SpeedReadings(37.0, usual_tps=37.6, memory_share=0.4, causes=[cause])
    assert speed_reason(usual).text.startswith("bound by the cores"), "it cost nothing"


def test_fewer_threads_than_usual_are_a_cause() -> None:
    assert fewer_threads(1, 2) == [Cause("1 thread instead of 2", 0.5)]
    assert fewer_threads(2, 2) == fewer_threads(4, 2) == fewer_threads(0, 2) == []


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, ""),
        (0.0, ""),
        (0.67, "bound by the cores: they compute at 67 % of what memory delivers"),
        (0.93, "bound by memory: 93 % of what this machine can read"),
        (1.06, "bound by memory: 100 % of what this machine can read"),
        (2.5, "bound by the cores: the caches deliver more than memory can"),
    ],
)
def test_an_undisturbed_speed_has_a_bound(share: float | None, text: str) -> None:
    assert bound_text(share) == text
    assert speed_reason(SpeedReadings(24.0, 24.0, share)) == SpeedReason(text)


OTHERS = Cause("other programs use 1.4 of 2 cores", 0.7)
QUOTA = Cause("a CPU quota allows 1.0 of 2 cores", 0.48, is_lasting=True)
DISK = Cause("reading 210 MB/s from disk", 0.6, is_lasting=True)
CLOCK = Cause("the processor runs at 2.0 of 3.5 GHz", 0.43, is_lasting=True)


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        (
            SpeedReadings(7.0, 24.0, 0.18, 0.02, (OTHERS,)),
            SpeedReason(f"{OTHERS.text} (usually 24.0 tok/s)", True),
        ),
        (
            SpeedReadings(7.0, 24.0, 0.18, 0.02),
            SpeedReason("slower than usual (24.0 tok/s), no cause seen", True),
        ),
        # two large causes
        (
            SpeedReadings(3.0, 24.0, 0.1, 0.02, (DISK, OTHERS)),
            SpeedReason(f"{OTHERS.text}; {DISK.text} (usually 24.0 tok/s)", True),
        ),
        # the second one is small
        (
            SpeedReadings(3.0, 24.0, 0.1, 0.02, (OTHERS, Cause("small", 0.2))),
            SpeedReason(f"{OTHERS.text} (usually 24.0 tok/s)", True),
        ),
        # other programs cost nothing if the speed is as usual
        (
            SpeedReadings(24.0, 24.0, 0.67, 0.02, (OTHERS,)),
            SpeedReason("bound by the cores: they compute at 67 % of what memory delivers"),
        ),
        # a quota may be part of what is usual
        (SpeedReadings(12.0, 12.0, 0.3, 0.02, (QUOTA,)), SpeedReason(QUOTA.text)),
        # nothing costs more than what the memory leaves
        (
            SpeedReadings(24.0, 24.0, 0.93, 0.02, (CLOCK,)),
            SpeedReason("bound by memory: 93 % of what this machine can read"),
        ),
        # nothing is known as usual
        (SpeedReadings(7.0, 0.0, None, 0.0, (OTHERS,)), SpeedReason(OTHERS.text, True)),
        (SpeedReadings(7.0, 0.0, None, 0.0, (Cause("small", 0.1),)), SpeedReason()),
        (SpeedReadings(0.0, 24.0, None, 0.0, (OTHERS,)), SpeedReason()),
        # a long context is no disturbance
        (
            SpeedReadings(7.0, 0.0, 0.9, 0.4),
            SpeedReason("the conversation is long: 40 % of each token's reading"),
        ),
        (
            SpeedReadings(15.0, 24.0, 0.9, 0.4),
            SpeedReason(
                "the conversation is long: 40 % of each token's reading (usually 24.0 tok/s)", True
            ),
        ),
    ],
)
def test_the_largest_cause_is_said(readings: SpeedReadings, reason: SpeedReason) -> None:
    assert speed_reason(readings) == reason


def test_only_samples_from_the_time_of_a_reply_count() -> None:
    samples = [dataclasses.replace(SAMPLE, at_s=float(second)) for second in range(10)]
    assert [sample.at_s for sample in samples_between(samples, 3.5, 6.5)] == [4.0, 5.0, 6.0, 7.0]
