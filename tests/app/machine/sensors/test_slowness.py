import dataclasses
from typing import Any

import pytest

from app.machine.sensors.sample import Battery
from app.machine.sensors.slowness import samples_between, slow_cause
from tests.app.machine.sensors.views import FACTS, SAMPLE

CALM = dataclasses.replace(SAMPLE, clock_ghz=2.8)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, ""),
        ({"others_cores": 1.4}, "other programs use 1.4 of 4 cores"),
        ({"throttled": 3}, "the processor is too hot"),
        ({"disk_bytes_per_s": 45e6, "others_cores": 1.4}, "reading from disk, 43 MB/s"),
        ({"clock_ghz": 1.2}, "the clock is at 1.2 of 2.9 GHz on battery"),
        (
            {"clock_ghz": 1.2, "battery": Battery(80.0, True)},
            "the clock is at 1.2 of 2.9 GHz",
        ),
        ({"interface_share": 0.6}, "drawing this screen"),
    ],
)
def test_a_slow_reply_has_a_cause(changes: dict[str, Any], cause: str) -> None:
    assert slow_cause([dataclasses.replace(CALM, **changes)]) == cause


def test_one_busy_second_in_ten_is_no_cause() -> None:
    busy = dataclasses.replace(CALM, others_cores=1.5)
    assert slow_cause([busy, *[CALM] * 9]) == ""
    assert slow_cause([busy] * 9) == "other programs use 1.5 of 4 cores"


def test_a_long_conversation_is_a_cause() -> None:
    assert slow_cause([CALM], context_share=FACTS.context_share(840)) == ""
    assert slow_cause([], context_share=FACTS.context_share(9000)) == "the conversation is long"


def test_only_samples_from_the_time_of_a_reply_count() -> None:
    samples = [dataclasses.replace(SAMPLE, at_s=float(second)) for second in range(10)]
    assert [sample.at_s for sample in samples_between(samples, 3.5, 6.5)] == [4.0, 5.0, 6.0, 7.0]
