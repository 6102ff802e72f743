"""Saved tuning: when it is used, and the reasons to doubt it."""

from pathlib import Path

import pytest

from app.machine.tuning.saved_tuning import SavedTuning, TuningPlace, recall, tuning_keys
from app.program.state import ProgramState, TunedChoice, TuningConditions
from engine.machine.topology import Cores, read_cores
from tests.engine import sysfs_trees

CHOICE = TunedChoice(2, 4)
OTHER = TunedChoice(1, 1)


def tuning_place(cores: Cores, level: str = "avx2", **changes: object) -> TuningPlace:
    return TuningPlace(
        f"{cores.identity}, {level}", "m, Q4_K_M, 1000 bytes", **{"kernels": "k1", **changes}
    )


@pytest.fixture
def laptop(tmp_path: Path) -> Cores:
    return read_cores([0, 1, 2, 3], sysfs_trees.two_cores_four_threads(tmp_path / "laptop"))


def state_with(*entries: tuple[str, TunedChoice, TuningConditions | None]) -> ProgramState:
    return ProgramState(
        tuned_threads={key: choice for key, choice, _ in entries},
        tuned_when={key: measured for key, _, measured in entries if measured is not None},
    )


def test_a_measurement_of_this_machine_is_not_doubted(laptop: Cores) -> None:
    current = tuning_place(laptop)
    measured = TuningConditions("k1")
    assert recall(state_with((current.key(False), CHOICE, measured)), current) == SavedTuning(
        CHOICE, measured
    )
    assert recall(ProgramState(), current) == SavedTuning()


def test_a_choice_of_another_engine_version_is_doubted(laptop: Cores) -> None:
    current = tuning_place(laptop)
    tuning = recall(state_with((current.key(False), CHOICE, TuningConditions("k0"))), current)
    assert tuning.choice == CHOICE
    assert tuning.doubt == "threads were tuned with another version of the engine"


@pytest.mark.parametrize("measured", [None, TuningConditions("")])
def test_a_manual_choice_is_not_doubted_for_its_version(
    laptop: Cores, measured: TuningConditions | None
) -> None:
    current = tuning_place(laptop)
    assert recall(state_with((current.key(False), CHOICE, measured)), current).doubt == ""


def test_a_choice_made_on_mains_is_doubted_on_battery(laptop: Cores) -> None:
    current = tuning_place(laptop, on_battery=True)
    tuning = recall(state_with((current.key(False), CHOICE, TuningConditions("k1"))), current)
    assert tuning.choice == CHOICE
    assert tuning.doubt == "threads were tuned on mains, now on battery"


def test_a_choice_made_on_battery_is_used_on_battery_only(laptop: Cores) -> None:
    current = tuning_place(laptop, on_battery=True)
    state_with_both = state_with(
        (current.key(False), CHOICE, None), (current.key(True), OTHER, TuningConditions("k1", True))
    )
    assert recall(state_with_both, current) == SavedTuning(OTHER, TuningConditions("k1", True))
    assert recall(state_with_both, tuning_place(laptop)) == SavedTuning(CHOICE)
    state_with_battery = state_with((current.key(True), OTHER, TuningConditions("k1", True)))
    assert recall(state_with_battery, tuning_place(laptop)) == SavedTuning(
        doubt="threads were tuned on battery, now on mains"
    )


def test_changed_cpus_quota_and_level_are_named(tmp_path: Path, laptop: Cores) -> None:
    state = state_with((tuning_place(laptop).key(False), CHOICE, TuningConditions("k1")))
    half = read_cores([0, 1], sysfs_trees.two_cores_four_threads(tmp_path / "part"))
    assert recall(state, tuning_place(half)) == SavedTuning(
        doubt="threads were tuned with 2 siblings, now with no siblings"
    )
    pinned = read_cores([0, 2], sysfs_trees.two_cores_four_threads(tmp_path / "pinned"))
    assert recall(state, tuning_place(pinned)).doubt == (
        "threads were tuned with 2 cores, 2 siblings, now with 1 core, 1 sibling"
    )
    sysfs_trees.two_cores_four_threads(tmp_path / "quota")
    limited = read_cores([0, 1, 2, 3], sysfs_trees.with_quota(tmp_path / "quota", "100000 100000"))
    assert (
        recall(state, tuning_place(limited)).doubt
        == "threads were tuned with no quota, now with a quota of 1 CPU"
    )
    assert (
        recall(state, tuning_place(laptop, "ssse3")).doubt
        == "threads were tuned with avx2, now with ssse3"
    )


def test_efficiency_cores_are_named_separately(tmp_path: Path) -> None:
    all_cores = read_cores(range(20), sysfs_trees.hybrid(tmp_path / "a"))
    fast_cores = read_cores(range(16), sysfs_trees.hybrid(tmp_path / "b"))
    tuning = recall(
        state_with((tuning_place(all_cores).key(False), CHOICE, None)), tuning_place(fast_cores)
    )
    assert tuning.doubt == "threads were tuned with 8 fast and 4 efficiency cores, now with 8 cores"
    assert tuning.choice is None


def test_other_machines_and_models_have_no_saved_tuning(tmp_path: Path, laptop: Cores) -> None:
    server = read_cores(range(24), sysfs_trees.two_sockets(tmp_path / "server"))
    assert (
        recall(state_with((tuning_place(server).key(False), CHOICE, None)), tuning_place(laptop))
        == SavedTuning()
    )
    other_model = TuningPlace(tuning_place(laptop).machine, "another, Q8_0, 5 bytes")
    half = read_cores([0, 1], sysfs_trees.two_cores_four_threads(tmp_path / "part"))
    assert (
        recall(state_with((other_model.key(False), CHOICE, None)), tuning_place(half))
        == SavedTuning()
    )


@pytest.mark.parametrize(
    "key", ["", " | ", "a | b | c", "x, 1, 2 | m, Q4_K_M, 1000 bytes", ", , , , , | "]
)
def test_invalid_keys_are_ignored(laptop: Cores, key: str) -> None:
    assert recall(state_with((key, CHOICE, None)), tuning_place(laptop)).choice is None


def test_a_choice_is_saved_for_its_power_source(laptop: Cores) -> None:
    on_mains = tuning_place(laptop)
    on_battery = tuning_place(laptop, on_battery=True)
    assert tuning_keys(on_mains, None) == (on_mains.key(False), "")
    assert tuning_keys(on_battery, None) == (on_mains.key(True), "")
    assert tuning_keys(on_battery, TuningConditions(on_battery=True)) == (
        on_mains.key(True),
        "",
    )
    # The choice made on mains is used again, so the choice for battery is deleted.
    assert tuning_keys(on_battery, TuningConditions(on_battery=False)) == (
        on_mains.key(False),
        on_mains.key(True),
    )
