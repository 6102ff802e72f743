"""Waiting for quiet before a measurement."""

from app.machine.tuning.quiet import SETTLE_S, QuietWatch, busy_text


def test_a_measurement_waits_until_others_stay_quiet() -> None:
    watch = QuietWatch()
    assert watch.is_quiet(0.0)
    watch.add(None, 0.0)
    assert watch.is_quiet(0.0)
    watch.add(1.4, 1.0)
    assert not watch.is_quiet(1.0)
    watch.add(0.1, 2.0)
    assert not watch.is_quiet(2.0)
    watch.add(0.4, 3.0)
    watch.add(0.3, 4.0)
    assert not watch.is_quiet(3.0 + SETTLE_S - 0.1)
    assert watch.is_quiet(3.0 + SETTLE_S)


def test_the_load_of_others_is_told_in_cores() -> None:
    assert busy_text(1.42, 2) == "other programs use 1.4 of 2 cores"
