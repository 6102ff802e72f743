from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.reply import ReplyMeter
from app.chat.status import Activity, EngineStatus
from app.machine.page_faults import DiskRate
from app.tui.widgets.status_line import fit, status_segments

MB = 1 << 20


@pytest.fixture
def writing() -> EngineStatus:
    """Four tokens a second."""
    meter = ReplyMeter(1, lambda: 10.25)
    meter.token_times_s = [0.25 * n for n in range(1, 42)]
    return EngineStatus(Activity.WRITING, meter=meter, threads=2, n_ctx=1000)


def words(status: EngineStatus, mb_per_s: float, columns: int = 80) -> str:
    return fit(status_segments(status, 0, columns, disk_bytes_per_s=mb_per_s * MB), columns).plain


@pytest.mark.parametrize("columns", [40, 80])
def test_the_status_line_says_what_each_token_reads_from_disk(writing: EngineStatus, columns: int) -> None:
    assert writing.rate_tps == pytest.approx(4.0)
    assert "disk 120M/token" in words(writing, 480, columns)
    assert "disk" not in words(writing, 0.9, columns)


def test_the_disk_rate_is_shown_during_prefill_but_not_at_rest(writing: EngineStatus) -> None:
    assert "disk 480M/s" in words(replace(writing, activity=Activity.READING), 480)
    assert "disk" not in words(replace(writing, activity=Activity.READY), 480)


def test_bytes_are_those_that_the_system_counts_for_this_process(tmp_path: Path) -> None:
    counts = tmp_path / "io"
    rate = DiskRate(counts)
    assert rate.since_last(1.0) is None
    for now_s, n_bytes, wanted in ((2.0, 1000, None), (4.0, 5000, 2000.0), (4.0, 9000, None), (5.0, 8000, 0.0)):
        counts.write_text(f"rchar: 7\nread_bytes: {n_bytes}\nwrite_bytes: 3\n")
        assert rate.since_last(now_s) == wanted
    counts.write_text("nothing of the kind")
    assert rate.since_last(6.0) is None
