"""Files in memory: counted page by page, and read in one sequential pass."""

import mmap
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from engine import Model
from engine.machine import residency
from tests.engine import tiny_gguf

UNTOLD = () if sys.platform == "linux" else (None,)
"""Reason to skip: the system does not report pages in memory."""


def test_a_newly_written_file_is_fully_resident(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    with path.open("rb") as file:
        view = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    assert residency.resident_bytes(view) in (100_000, *UNTOLD)


def test_a_sample_of_pages_estimates_the_resident_share() -> None:
    view = np.frombuffer(mmap.mmap(-1, 64 << 20), np.uint8)
    view[: 32 << 20] = 1
    exact = residency.resident_bytes(view)
    glanced = residency.resident_bytes(view, 2048)
    if exact is None:
        assert exact in UNTOLD
        assert glanced is None
    else:
        assert exact >= 32 << 20
        assert glanced == pytest.approx(exact, abs=4 << 20)


def test_a_sequential_pass_reports_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "STEP_BYTES", 1000)
    path = tmp_path / "file"
    path.write_bytes(bytes(2500))
    seen: list[tuple[int, int]] = []
    residency.read_in_order([(path, 0, 2500)], lambda done, total: seen.append((done, total)))
    assert seen == [(1000, 2500), (2000, 2500), (2500, 2500)]


def test_a_sequential_pass_reads_only_the_given_ranges(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2500))
    seen: list[tuple[int, int]] = []
    residency.read_in_order(
        [(path, 0, 700), (path, 2000, 2500)], lambda done, total: seen.append((done, total))
    )
    assert seen == [(700, 1200), (1200, 1200)]


def test_remaining_ranges_of_a_file_start_at_pages() -> None:
    page = mmap.PAGESIZE
    assert residency.pages_without(10 * page + 5, []) == [(0, 10 * page + 5)]
    assert residency.pages_without(10 * page, [(page + 1, 3 * page + 1)]) == [
        (0, 2 * page),
        (3 * page, 10 * page),
    ]
    assert residency.pages_without(10 * page, [(7, page - 1), (page + 1, 2 * page - 1)]) == [
        (0, 10 * page)
    ]
    assert residency.pages_without(4 * page, [(0, 2 * page), (3 * page, 4 * page)]) == [
        (2 * page, 3 * page)
    ]


def test_a_deleted_file_is_no_error(tmp_path: Path) -> None:
    residency.read_in_order([(tmp_path / "none", 0, 10)], lambda done, total: None)


def test_a_model_on_disk_is_read_in_order_before_the_first_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "resident_bytes", lambda view, _: 0)
    seen = []
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1, progress=seen.append)
    model.session(n_ctx=16)
    loading = [step for step in seen if step.stage == "load"]
    assert loading
    assert (loading[-1].done, loading[-1].name) == (loading[-1].total, "m.gguf")
    model.close()


def test_a_model_in_memory_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "resident_bytes", lambda view, _: len(view))
    seen = []
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1, progress=seen.append)
    model.session(n_ctx=16)
    assert [step for step in seen if step.stage == "load"] == []
    model.close()


def test_the_map_of_a_file_in_memory_is_prepared_ahead(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 20))
    with path.open("rb") as file:
        view = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    if sys.platform != "linux" or tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
        pytest.skip("this system cannot prepare maps")
    earlier_bytes = mapped_bytes(view)
    ahead = residency.MappingAhead([view])
    ahead.wait()
    assert (earlier_bytes, mapped_bytes(view)) == (0, len(view))
    ahead.stop()


def test_the_map_of_a_file_on_disk_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "resident_bytes", lambda view, _: len(view) // 2)
    view = np.frombuffer(mmap.mmap(-1, 8 << 20), np.uint8)
    ahead = residency.MappingAhead([view])
    ahead.wait()
    assert mapped_bytes(view) in (0, None)
    ahead.stop()


def test_a_model_opens_even_if_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "map-ahead":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1)
    assert model.session(n_ctx=16).feed([1, 2, 3]).shape == (model.config.vocab_size,)
    model.close()


def mapped_bytes(view: np.ndarray) -> int | None:
    """Return how many bytes of a map are in the page table, or None if the system does not say."""
    try:
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    except OSError:
        return None
    start = f"{view.ctypes.data:x}-"
    inside = (line for line in lines if line.startswith(start))
    next(inside)
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Rss:"))
