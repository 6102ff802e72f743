"""Memory limits of control groups, read from recorded trees."""

from pathlib import Path

import psutil
import pytest

from engine.machine import host
from tests.engine import sysfs_trees

GIB = 1 << 30


class _Plenty:
    total = available = 64 * GIB


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", _Plenty)


def in_group(root: Path, stat: str, limit: int | str = 4 * GIB, used: int = 4 * GIB - 4096) -> Path:
    files = {
        "proc/self/cgroup": "0::/outer/inner",
        "sys/fs/cgroup/outer/inner/memory.max": str(limit),
    }
    files |= {
        "sys/fs/cgroup/outer/inner/memory.current": str(used),
        "sys/fs/cgroup/outer/inner/memory.stat": stat,
    }
    return sysfs_trees.write(root, files)


def test_pages_of_files_count_as_available(tmp_path: Path) -> None:
    root = in_group(
        tmp_path, f"anon {GIB}\nfile {3 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB // 2}"
    )
    assert host.available_memory_bytes(root) == 5 * GIB // 2 + 4096
    assert host.total_memory_bytes(root) == 4 * GIB


@pytest.mark.parametrize("stat", ["", "nonsense", "inactive_file many"])
def test_without_a_count_of_file_pages_all_used_memory_counts(tmp_path: Path, stat: str) -> None:
    assert host.available_memory_bytes(in_group(tmp_path, stat)) == 4096


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    root = in_group(tmp_path, "inactive_file 0", limit="max")
    outer = {"memory.max": str(3 * GIB), "memory.current": str(2 * GIB), "memory.stat": "anon 1"}
    sysfs_trees.write(root, {f"sys/fs/cgroup/outer/{name}": text for name, text in outer.items()})
    assert host.available_memory_bytes(root) == GIB
    assert host.total_memory_bytes(root) == 3 * GIB


def test_old_control_groups_count_with_the_groups_below_them(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker/ab12"
    files = {
        "proc/self/cgroup": "4:memory:/docker/ab12\n0::/",
        f"{group}/memory.limit_in_bytes": str(2 * GIB),
        f"{group}/memory.usage_in_bytes": str(2 * GIB),
        f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file 0",
    }
    assert host.available_memory_bytes(sysfs_trees.write(tmp_path, files)) == GIB


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert host.available_memory_bytes(tmp_path) == host.total_memory_bytes(tmp_path) == 64 * GIB


def test_memory_is_known_without_procfs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(host.psutil, "virtual_memory", fail)
    assert 0 < host.available_memory_bytes(tmp_path) <= host.total_memory_bytes(tmp_path)
