"""Conditions of the machine during a measurement."""

import pytest

from app.machine.sensors.tuning_conditions import Conditions, ConditionsWatch
from tests.app.scripted_machine import ScriptedMachine


def test_a_quiet_machine_spoils_nothing() -> None:
    machine = ScriptedMachine()
    watch = machine.watch()
    watch.begin()
    machine.now_s = 10.0
    machine.own_s = 18.0
    found = watch.end()
    assert found == Conditions(on_battery=False, swapped_bytes=0, others_cores=pytest.approx(0.0))
    assert not found.is_swapping
    assert not found.is_crowded
    assert found.remarks() == ()


def test_another_program_or_the_host_that_takes_a_core_is_seen() -> None:
    machine = ScriptedMachine()
    watch = machine.watch()
    watch.begin()
    machine.now_s = 10.0
    machine.own_s = 9.0
    machine.busy_s = 6.0
    machine.steal_s = 2.0
    found = watch.end()
    assert found.others_cores == pytest.approx(0.8)
    assert found.is_crowded
    assert "Other programs used 0.8 cores" in found.remarks()[0]


def test_swapping_is_seen_from_bytes_moved_not_from_bytes_held() -> None:
    machine = ScriptedMachine()
    machine.swapped_bytes = 5 << 30
    watch = machine.watch()
    watch.begin()
    machine.now_s = 5.0
    assert not watch.end().is_swapping
    watch.begin()
    machine.now_s = 10.0
    machine.swapped_bytes = (5 << 30) + (64 << 20)
    found = watch.end()
    assert found.is_swapping
    assert found.is_swapping or found.is_crowded
    assert "not saved" in found.remarks()[0]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_battery_at_either_end_counts(moment: str) -> None:
    machine = ScriptedMachine()
    machine.on_mains = moment != "before"
    watch = machine.watch()
    watch.begin()
    machine.now_s = 5.0
    machine.on_mains = moment == "before"
    found = watch.end()
    assert found.on_battery
    assert not found.is_swapping
    assert not found.is_crowded
    assert found.remarks() == ("Measured on battery, so this applies on battery only.",)


def test_a_machine_that_tells_nothing_is_taken_as_quiet() -> None:
    watch = ConditionsWatch(None)
    watch.begin()
    assert watch.end() == Conditions()


def test_what_spoils_one_of_two_spans_spoils_both() -> None:
    swapping = Conditions(swapped_bytes=64 << 20)
    on_battery = Conditions(True, 0, 0.2)
    assert swapping.joined(on_battery) == Conditions(True, 64 << 20, 0.2)
    assert Conditions().joined(Conditions()) == Conditions()
