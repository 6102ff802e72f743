"""Conditions of the machine during a measurement."""

import pytest

from app.machine.sensors.tuning_conditions import Conditions, ConditionsWatch
from tests.app.scripted_machine import ScriptedMachine


def test_a_quiet_machine_gives_no_remarks() -> None:
    machine = ScriptedMachine()
    watch = machine.watch()
    watch.begin()
    machine.now_s = 10.0
    machine.own_s = 18.0
    conditions = watch.end()
    assert conditions == Conditions(
        on_battery=False, swapped_bytes=0, others_cores=pytest.approx(0.0)
    )
    assert not conditions.is_swapping
    assert conditions.is_quiet
    assert conditions.remarks() == ()


def test_load_of_other_programs_and_the_host_is_noticed() -> None:
    machine = ScriptedMachine()
    watch = machine.watch()
    watch.begin()
    machine.now_s = 10.0
    machine.own_s = 9.0
    machine.busy_s = 6.0
    machine.steal_s = 2.0
    conditions = watch.end()
    assert conditions.others_cores == pytest.approx(0.8)
    assert conditions.disturbing_cores == pytest.approx(0.8)
    assert "Other programs used 0.8 cores" in conditions.remarks()[0]


def test_only_swap_traffic_counts_as_swapping() -> None:
    machine = ScriptedMachine()
    machine.swapped_bytes = 5 << 30
    watch = machine.watch()
    watch.begin()
    machine.now_s = 5.0
    assert not watch.end().is_swapping
    watch.begin()
    machine.now_s = 10.0
    machine.swapped_bytes = (5 << 30) + (64 << 20)
    conditions = watch.end()
    assert conditions.is_swapping
    assert conditions.is_swapping
    assert "not saved" in conditions.remarks()[0]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_battery_at_the_start_or_the_end_counts(moment: str) -> None:
    machine = ScriptedMachine()
    machine.on_mains = moment != "before"
    watch = machine.watch()
    watch.begin()
    machine.now_s = 5.0
    machine.on_mains = moment == "before"
    conditions = watch.end()
    assert conditions.on_battery
    assert not conditions.is_swapping
    assert conditions.is_quiet
    assert conditions.remarks() == ("Measured on battery, so this applies on battery only.",)


def test_a_machine_without_readings_counts_as_quiet() -> None:
    watch = ConditionsWatch(None)
    watch.begin()
    assert watch.end() == Conditions()


def test_joined_spans_have_the_problems_of_both() -> None:
    swapping = Conditions(swapped_bytes=64 << 20)
    on_battery = Conditions(True, 0, 0.2)
    assert swapping.joined(on_battery) == Conditions(True, 64 << 20, 0.2)
    assert Conditions().joined(Conditions()) == Conditions()
