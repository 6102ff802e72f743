"""Maps of the cores, read from trees recorded on other machines, and from broken ones."""

from pathlib import Path

import pytest

from engine.machine.core_map import MOST_CPUS, CoreMap, read_core_map
from engine.machine.topology import listed_numbers
from tests.engine import sysfs_trees
from tests.engine.sysfs_trees import CPUS, caches, online, processors, write


def numbers(core_map: CoreMap) -> list[int]:
    return [cpu.number for cpu in core_map.cpus]


def groups(core_map: CoreMap) -> set[tuple[int, int]]:
    return {(cpu.cache_level, cpu.cache) for cpu in core_map.cpus}


def test_siblings_stand_next_to_each_other(tmp_path: Path) -> None:
    core_map = read_core_map(range(4), sysfs_trees.two_cores_four_threads(tmp_path))
    assert [(cpu.number, cpu.core) for cpu in core_map.cpus] == [(0, 0), (2, 0), (1, 1), (3, 1)]
    assert groups(core_map) == {(3, 0)}
    assert not core_map.has_two_kinds


def test_fast_cores_come_before_efficiency_cores(tmp_path: Path) -> None:
    core_map = read_core_map(range(16), sysfs_trees.small_hybrid(tmp_path))
    assert numbers(core_map) == list(range(16))
    assert [cpu.number for cpu in core_map.cpus if cpu.is_efficiency] == list(range(8, 16))
    assert core_map.has_two_kinds
    assert groups(core_map) == {(3, 0)}
    assert [cpu.clock for cpu in core_map.cpus] == list(range(16))


def test_little_cores_with_low_numbers_come_last(tmp_path: Path) -> None:
    core_map = read_core_map(range(8), sysfs_trees.big_little(tmp_path))
    assert numbers(core_map) == [4, 5, 6, 7, 0, 1, 2, 3]


def test_cores_that_share_a_cache_are_a_group(tmp_path: Path) -> None:
    core_map = read_core_map(range(16), sysfs_trees.two_caches(tmp_path))
    assert numbers(core_map) == [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
    assert groups(core_map) == {(3, 0), (3, 4)}


def test_the_cores_of_a_pi_share_clock_and_cache(tmp_path: Path) -> None:
    core_map = read_core_map(range(4), sysfs_trees.raspberry_pi(tmp_path))
    assert [(cpu.core, cpu.clock) for cpu in core_map.cpus] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert groups(core_map) == {(2, 0)}
    assert not core_map.has_two_kinds


def test_private_caches_make_no_groups(tmp_path: Path) -> None:
    files = processors([[0, 1], [2, 3]], "x", {0: 0, 2: 1}) | caches({2: ["0-1", "2-3"]})
    core_map = read_core_map(range(4), write(tmp_path, files))
    assert groups(core_map) == {(0, 0), (0, 2)}, "two packages"
    core_map = read_core_map(range(4), sysfs_trees.virtual_machine(tmp_path / "machine"))
    assert groups(core_map) == {(0, 0)}


def test_cpus_that_are_not_allowed_are_on_the_map(tmp_path: Path) -> None:
    core_map = read_core_map([2, 3], sysfs_trees.two_cores_four_threads(tmp_path))
    assert [cpu.number for cpu in core_map.cpus if cpu.is_allowed] == [2, 3]
    assert len(core_map.cpus) == 4


def test_offline_cpus_are_counted(tmp_path: Path) -> None:
    root = write(sysfs_trees.raspberry_pi(tmp_path), online("0,2", "0-3"))
    core_map = read_core_map([0, 2], root)
    assert (numbers(core_map), core_map.n_offline) == ([0, 2], 2)


def test_nothing_is_known_outside_linux(tmp_path: Path) -> None:
    core_map = read_core_map([0, 1], tmp_path)
    assert [(cpu.number, cpu.core) for cpu in core_map.cpus] == [(0, 0), (1, 1)]
    assert core_map.n_offline == 0


@pytest.mark.parametrize(
    "garbage", ["", "-1", "-4", "x", "²", "9" * 5000, "0-", "7-3", "1,,5", "0\0"]
)
def test_garbage_in_any_file_makes_cores_of_their_own(tmp_path: Path, garbage: str) -> None:
    names = ("topology/core_cpus_list", "cache/index0/level", "cache/index0/shared_cpu_list")
    files = {f"{CPUS}/cpu{cpu}/{name}": garbage for cpu in range(3) for name in names}
    files |= {f"{CPUS}/cpu0/cpu_capacity": garbage, f"{CPUS}/cpufreq/policyx/related_cpus": garbage}
    files |= {f"{CPUS}/cpufreq/policy0/related_cpus": garbage, f"{CPUS}/present": garbage}
    core_map = read_core_map([0, 2], write(tmp_path, files | {f"{CPUS}/online": "0,2"}))
    assert [(cpu.number, cpu.core) for cpu in core_map.cpus] == [(0, 0), (2, 2)]


def test_a_list_of_cpus_is_bounded(tmp_path: Path) -> None:
    root = write(tmp_path, {f"{CPUS}/online": "0-99999999"})
    assert len(read_core_map([0], root).cpus) == MOST_CPUS
    assert len(list(listed_numbers("1-2," * 5000))) <= 1000
