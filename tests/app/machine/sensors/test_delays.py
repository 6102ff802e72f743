from pathlib import Path

import pytest

from app.machine.sensors.delays import CoreWaits, DiskStalls, QuotaUse, QuotaWatch
from tests.app.machine.sensors.scripted_machine import write_tree
from tests.engine.sysfs_trees import with_old_quota, with_quota

S = 1_000_000_000


def test_the_longest_wait_of_a_working_thread_counts(tmp_path: Path) -> None:
    engine = [11, 12, 13, 14, 15, 16]
    waits = CoreWaits(lambda: engine, tmp_path)
    write_tree(
        tmp_path,
        {
            "7/schedstat": "0 0 1\n",
            "11/schedstat": "5000000000 0 1\n",
            "12/schedstat": "5000000000 0 1\n",
            "13/schedstat": "0 0 1\n",
        },
    )
    assert waits.largest_share(1.0) is None
    write_tree(
        tmp_path,
        {
            "7/schedstat": f"{S} {S} 1\n",
            "11/schedstat": f"{5 * S + 600_000_000} 400000000 1\n",
            "12/schedstat": f"{5 * S + 900_000_000} 100000000 1\n",
            "13/schedstat": "1000000 90000000 1\n",
            "14/schedstat": f"{9 * S} {9 * S} 1\n",
            "15/schedstat": "nonsense\n",
        },
    )
    assert waits.largest_share(1.0) == pytest.approx(0.4)
    assert waits.largest_share(1.0) == 0.0


def test_threads_without_statistics_have_no_waits(tmp_path: Path) -> None:
    write_tree(tmp_path, {"11/stat": ""})
    waits = CoreWaits(lambda: [11], tmp_path)
    assert waits.largest_share(1.0) is None
    assert waits.largest_share(1.0) is None


def check_quota(root: Path, stat: str) -> None:
    """Expect a quota that was used up in three of four periods."""
    write_tree(root, {stat: "nr_periods 5\nnr_throttled 2\nthrottled_usec 70\n"})
    watch = QuotaWatch(root)
    assert watch.since_last(100.0) is None
    write_tree(root, {stat: "nr_periods 9\nnr_throttled 5\nthrottled_usec 90\n"})
    assert watch.since_last(101.0) == QuotaUse(1.5, 0.75)
    assert watch.since_last(102.0) == QuotaUse(1.5, 0.0)


def test_the_use_of_a_quota_is_counted(tmp_path: Path) -> None:
    with_quota(tmp_path, "150000 100000", parent="400000 100000")
    write_tree(tmp_path, {"sys/fs/cgroup/outer/cpu.stat": "nr_periods 5\nnr_throttled 5\n"})
    check_quota(tmp_path, "sys/fs/cgroup/outer/inner/cpu.stat")


def test_the_use_of_an_old_quota_is_counted(tmp_path: Path) -> None:
    with_old_quota(tmp_path, "150000")
    check_quota(tmp_path, "sys/fs/cgroup/cpu/cpu.stat")


@pytest.mark.parametrize("limit", ["max 100000", "", "5", "0 0", "-1 100000", "x y"])
def test_without_a_quota_nothing_is_held_back(tmp_path: Path, limit: str) -> None:
    with_quota(tmp_path, limit)
    write_tree(tmp_path, {"sys/fs/cgroup/outer/inner/cpu.stat": "nr_periods 5\n"})
    watch = QuotaWatch(tmp_path)
    assert [watch.since_last(100.0), watch.since_last(101.0)] == [None, None]


def test_stalls_on_disks_are_shares_of_time(tmp_path: Path) -> None:
    source = tmp_path / "io"
    row = "avg10=0.00 avg60=0.00 avg300=0.00 total="
    source.write_text(f"some {row}1000000\nfull {row}7\n")
    stalls = DiskStalls(source)
    assert stalls.since_last(10.0) is None
    source.write_text(f"some {row}1700000\nfull {row}7\n")
    assert stalls.since_last(11.0) == pytest.approx(0.7)
    source.write_text("nonsense")
    assert stalls.since_last(12.0) is None
