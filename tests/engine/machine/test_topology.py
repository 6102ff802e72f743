"""Cores, siblings, sockets and quotas, read from trees recorded on other machines."""

from pathlib import Path

import pytest

from engine.machine.topology import cpu_quota, last_cache_bytes, read_cores
from tests.engine import sysfs_trees


def test_four_threads_on_two_cores_are_two_cores_two_siblings(tmp_path: Path) -> None:
    cores = read_cores([0, 1, 2, 3], sysfs_trees.two_cores_four_threads(tmp_path))
    assert cores.logical == (0, 1, 2, 3)
    assert (cores.n_physical, cores.n_siblings, cores.n_efficiency, cores.n_sockets) == (2, 2, 0, 1)
    assert [cores.kind(n) for n in (1, 2, 3, 4)] == ["core", "core", "sibling", "sibling"]
    assert (cores.default_threads, cores.most_threads) == (2, 4)
    assert cores.name == "Intel(R) Core(TM) i5-4278U CPU @ 2.60GHz"


def test_adjacent_siblings_come_after_all_cores(tmp_path: Path) -> None:
    root = sysfs_trees.write(tmp_path, sysfs_trees.processors([[0, 1], [2, 3]], "x"))
    assert read_cores([0, 1, 2, 3], root).logical == (0, 2, 1, 3)


def test_only_allowed_cpus_count(tmp_path: Path) -> None:
    cores = read_cores([1, 3], sysfs_trees.two_cores_four_threads(tmp_path))
    assert (cores.logical, cores.n_physical, cores.n_siblings) == ((1, 3), 1, 1)


def test_hybrid_order_is_fast_cores_efficiency_cores_siblings(tmp_path: Path) -> None:
    cores = read_cores(list(range(20)), sysfs_trees.hybrid(tmp_path))
    assert cores.logical == (*range(0, 16, 2), 16, 17, 18, 19, *range(1, 16, 2))
    assert (cores.n_fast, cores.n_efficiency, cores.n_siblings) == (8, 4, 8)
    assert [cores.kind(n) for n in (8, 9, 12, 13)] == [
        "core",
        "efficiency core",
        "efficiency core",
        "sibling",
    ]
    assert cores.default_threads == 8


def test_efficiency_cores_count_as_cores_if_there_are_no_others(tmp_path: Path) -> None:
    cores = read_cores([16, 17, 18, 19], sysfs_trees.hybrid(tmp_path))
    assert (cores.n_fast, cores.n_efficiency, cores.default_threads) == (4, 0, 4)


def test_capacities_distinguish_big_and_little_cores(tmp_path: Path) -> None:
    cores = read_cores(list(range(8)), sysfs_trees.big_little(tmp_path))
    assert cores.logical == (4, 5, 6, 7, 0, 1, 2, 3)
    assert (cores.n_fast, cores.n_efficiency, cores.name) == (4, 4, "Radxa ROCK 5B")


def test_clock_rates_distinguish_core_types_but_boosts_do_not(tmp_path: Path) -> None:
    files = sysfs_trees.processors([[cpu] for cpu in range(4)], "x")
    clocks = ["5100000", "4800000", "3300000", "3300000"]
    files |= {
        f"{sysfs_trees.CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq": clock
        for cpu, clock in enumerate(clocks)
    }
    cores = read_cores([0, 1, 2, 3], sysfs_trees.write(tmp_path, files))
    assert (cores.n_fast, cores.n_efficiency) == (2, 2)


def test_two_sockets_are_counted(tmp_path: Path) -> None:
    cores = read_cores(list(range(24)), sysfs_trees.two_sockets(tmp_path))
    assert (cores.n_physical, cores.n_siblings, cores.n_sockets) == (12, 12, 2)
    assert cores.logical[:12] == tuple(range(12))


def test_a_virtual_machine_has_cores_only(tmp_path: Path) -> None:
    cores = read_cores([0, 1, 2, 3], sysfs_trees.virtual_machine(tmp_path))
    assert (cores.n_physical, cores.n_siblings, cores.n_efficiency, cores.quota) == (4, 0, 0, None)


@pytest.mark.parametrize(
    ("group", "parent", "quota"),
    [
        ("200000 100000", "max 100000", 2),
        ("max 100000", "150000 100000", 1),
        ("400000 100000", "250000 100000", 2),
        ("50000 100000", "max 100000", 1),
        ("max 100000", "max 100000", None),
        ("nonsense", "", None),
    ],
)
def test_the_smallest_quota_of_all_levels_counts_in_whole_cpus(
    tmp_path: Path, group: str, parent: str, quota: int | None
) -> None:
    sysfs_trees.virtual_machine(tmp_path)
    cores = read_cores([0, 1, 2, 3], sysfs_trees.with_quota(tmp_path, group, parent))
    assert cores.quota == quota
    assert cores.default_threads == (quota or 4)


@pytest.mark.parametrize(("quota_us", "quota"), [("200000", 2), ("150000", 1), ("-1", None)])
def test_old_control_groups_count_too(tmp_path: Path, quota_us: str, quota: int | None) -> None:
    assert cpu_quota(sysfs_trees.with_old_quota(tmp_path, quota_us)) == quota


def test_without_sysfs_every_cpu_is_a_core(tmp_path: Path) -> None:
    cores = read_cores([0, 1, 2], tmp_path)
    assert (cores.logical, cores.n_physical, cores.quota, cores.name) == ((0, 1, 2), 3, None, "")


def test_the_identity_depends_on_cores_and_quotas(tmp_path: Path) -> None:
    all_cores = read_cores([0, 1, 2, 3], sysfs_trees.two_cores_four_threads(tmp_path / "a"))
    two_cores = read_cores([0, 1], sysfs_trees.two_cores_four_threads(tmp_path / "a"))
    sysfs_trees.two_cores_four_threads(tmp_path / "b")
    limited = read_cores([0, 1, 2, 3], sysfs_trees.with_quota(tmp_path / "b", "200000 100000"))
    assert len({all_cores.identity, two_cores.identity, limited.identity}) == 3


def test_the_last_cache_is_the_largest(tmp_path: Path) -> None:
    assert last_cache_bytes(tmp_path) == 0
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cache"
    for i, text in enumerate(["48K\n", "2048K\n", "491520K\n", "many\n", ""]):
        (folder / f"index{i}").mkdir(parents=True)
        (folder / f"index{i}" / "size").write_text(text)
    assert last_cache_bytes(tmp_path) == 480 << 20
