"""Remembered measurements: where they hold, and why they may not hold any more."""

from pathlib import Path

import pytest

from app.machine.tuning.saved_tuning import SavedTuning, TuningPlace, recall, tuning_keys
from app.program.state import ProgramState, TunedChoice, TuningConditions
from engine.machine.topology import Cores, read_cores
from tests.engine import sysfs_trees

CHOICE = TunedChoice(2, 4)
OTHER = TunedChoice(1, 1)


def place(cores: Cores, level: str = "avx2", **changes: object) -> TuningPlace:
    return TuningPlace(
        f"{cores.identity}, {level}", "m, Q4_K_M, 1000 bytes", **{"kernels": "k1", **changes}
    )


@pytest.fixture
def laptop(tmp_path: Path) -> Cores:
    return read_cores([0, 1, 2, 3], sysfs_trees.two_cores_four_threads(tmp_path / "laptop"))


def kept(*entries: tuple[str, TunedChoice, TuningConditions | None]) -> ProgramState:
    return ProgramState(
        tuned_threads={key: choice for key, choice, _ in entries},
        tuned_when={key: measured for key, _, measured in entries if measured is not None},
    )


def test_what_was_measured_here_holds_without_doubt(laptop: Cores) -> None:
    here = place(laptop)
    measured = TuningConditions("k1")
    assert recall(kept((here.key(False), CHOICE, measured)), here) == SavedTuning(CHOICE, measured)
    assert recall(ProgramState(), here) == SavedTuning()


def test_a_choice_of_other_kernels_is_used_with_a_doubt(laptop: Cores) -> None:
    here = place(laptop)
    found = recall(kept((here.key(False), CHOICE, TuningConditions("k0"))), here)
    assert found.choice == CHOICE
    assert found.doubt == "threads were tuned with another version of the engine"


@pytest.mark.parametrize("measured", [None, TuningConditions("")])
def test_what_was_chosen_by_hand_is_not_doubted_for_its_version(
    laptop: Cores, measured: TuningConditions | None
) -> None:
    here = place(laptop)
    assert recall(kept((here.key(False), CHOICE, measured)), here).doubt == ""


def test_on_battery_what_holds_on_mains_is_used_and_doubted(laptop: Cores) -> None:
    here = place(laptop, on_battery=True)
    found = recall(kept((here.key(False), CHOICE, TuningConditions("k1"))), here)
    assert found.choice == CHOICE
    assert found.doubt == "threads were tuned on mains, now on battery"


def test_a_choice_made_on_battery_is_used_on_battery_only(laptop: Cores) -> None:
    here = place(laptop, on_battery=True)
    both = kept(
        (here.key(False), CHOICE, None), (here.key(True), OTHER, TuningConditions("k1", True))
    )
    assert recall(both, here) == SavedTuning(OTHER, TuningConditions("k1", True))
    assert recall(both, place(laptop)) == SavedTuning(CHOICE)
    alone = kept((here.key(True), OTHER, TuningConditions("k1", True)))
    assert recall(alone, place(laptop)) == SavedTuning(
        doubt="threads were tuned on battery, now on mains"
    )


def test_fewer_cpus_a_quota_and_another_level_are_named(tmp_path: Path, laptop: Cores) -> None:
    before = kept((place(laptop).key(False), CHOICE, TuningConditions("k1")))
    part = read_cores([0, 1], sysfs_trees.two_cores_four_threads(tmp_path / "part"))
    assert recall(before, place(part)) == SavedTuning(
        doubt="threads were tuned with 2 siblings, now with no siblings"
    )
    pinned = read_cores([0, 2], sysfs_trees.two_cores_four_threads(tmp_path / "pinned"))
    assert recall(before, place(pinned)).doubt == (
        "threads were tuned with 2 cores, 2 siblings, now with 1 core, 1 sibling"
    )
    sysfs_trees.two_cores_four_threads(tmp_path / "quota")
    limited = read_cores([0, 1, 2, 3], sysfs_trees.with_quota(tmp_path / "quota", "100000 100000"))
    assert (
        recall(before, place(limited)).doubt
        == "threads were tuned with no quota, now with a quota of 1 CPU"
    )
    assert (
        recall(before, place(laptop, "ssse3")).doubt
        == "threads were tuned with avx2, now with ssse3"
    )


def test_efficiency_cores_are_named_apart(tmp_path: Path) -> None:
    whole = read_cores(range(20), sysfs_trees.hybrid(tmp_path / "a"))
    fast = read_cores(range(16), sysfs_trees.hybrid(tmp_path / "b"))
    found = recall(kept((place(whole).key(False), CHOICE, None)), place(fast))
    assert found.doubt == "threads were tuned with 8 fast and 4 efficiency cores, now with 8 cores"
    assert found.choice is None


def test_another_machine_and_another_model_say_nothing(tmp_path: Path, laptop: Cores) -> None:
    server = read_cores(range(24), sysfs_trees.two_sockets(tmp_path / "server"))
    assert recall(kept((place(server).key(False), CHOICE, None)), place(laptop)) == SavedTuning()
    other_model = TuningPlace(place(laptop).machine, "another, Q8_0, 5 bytes")
    part = read_cores([0, 1], sysfs_trees.two_cores_four_threads(tmp_path / "part"))
    assert recall(kept((other_model.key(False), CHOICE, None)), place(part)) == SavedTuning()


@pytest.mark.parametrize(
    "key", ["", " | ", "a | b | c", "x, 1, 2 | m, Q4_K_M, 1000 bytes", ", , , , , | "]
)
def test_names_that_are_no_names_are_passed_over(laptop: Cores, key: str) -> None:
    assert recall(kept((key, CHOICE, None)), place(laptop)).choice is None


def test_a_choice_is_kept_for_the_power_source_it_was_made_on(laptop: Cores) -> None:
    on_mains = place(laptop)
    on_battery = place(laptop, on_battery=True)
    assert tuning_keys(on_mains, None) == (on_mains.key(False), "")
    assert tuning_keys(on_battery, None) == (on_mains.key(True), "")
    assert tuning_keys(on_battery, TuningConditions(on_battery=True)) == (
        on_mains.key(True),
        "",
    )
    # What holds on mains comes back: what stood in its way on battery goes.
    assert tuning_keys(on_battery, TuningConditions(on_battery=False)) == (
        on_mains.key(False),
        on_mains.key(True),
    )
