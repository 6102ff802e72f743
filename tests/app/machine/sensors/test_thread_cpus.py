"""Threads of this process: their processor time, and the CPUs on which they last ran."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.backend.work_thread import THREAD_NAME, WorkThread, engine_thread_numbers
from app.machine.sensors.machine_monitor import MachineMonitor
from app.machine.sensors.thread_cpus import ThreadState, ThreadStates
from engine.machine import host
from tests.app.machine.sensors.scripted_machine import STATUS, ScriptedPsutil, write_tree

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def stat(ticks: int, cpu: int, name: str = "crew-1") -> str:
    """Return a line as /proc/PID/task/TID/stat has it."""
    fields = ["R"] + ["0"] * 49
    fields[11] = str(ticks - ticks // 3)
    fields[12] = str(ticks // 3)
    fields[36] = str(cpu)
    return f"7 ({name}) {' '.join(fields)}\n"


def no_process() -> SimpleNamespace:
    return SimpleNamespace(threads=list)


def test_times_and_cpus_of_all_threads_are_read(tmp_path: Path) -> None:
    texts = {"7/stat": stat(3 * TICKS_PER_S, 5), "8/stat": stat(TICKS_PER_S, 0, "a) b ( 1 2 3")}
    states = ThreadStates(write_tree(tmp_path, texts), no_process()).read()
    assert states == {7: ThreadState(3.0, 5), 8: ThreadState(1.0, 0)}


@pytest.mark.parametrize(
    "text",
    ["", "7", "7 (x) R 1 2", stat(-5, 0), stat(1, -1), stat(1, 1 << 20), "(" * 9000, "²" * 90],
)
def test_senseless_threads_are_left_out(tmp_path: Path, text: str) -> None:
    texts = {"7/stat": text, "8/stat": stat(TICKS_PER_S, 1), "x/stat": stat(1, 1), "9/none": ""}
    states = ThreadStates(write_tree(tmp_path, texts), no_process()).read()
    assert states == {8: ThreadState(1.0, 1)}


def test_psutil_tells_the_times_where_there_is_no_proc(tmp_path: Path) -> None:
    process = SimpleNamespace(
        threads=lambda: [SimpleNamespace(id=3, user_time=1.0, system_time=0.5)]
    )
    assert ThreadStates(tmp_path / "none", process).read() == {3: ThreadState(1.5)}


def test_only_working_threads_of_the_engine_have_cpus(tmp_path: Path) -> None:
    def write(*ticks: int) -> None:
        numbers = range(1, len(ticks) + 1)
        texts = {
            f"self/task/{number}/stat": stat(spent, cpu=number)
            for number, spent in zip(numbers, ticks, strict=True)
        }
        write_tree(tmp_path, texts | {"self/status": STATUS})

    write(0, 0, 0)
    engine_threads = {1, 2}
    monitor = MachineMonitor(
        ScriptedPsutil(), tmp_path / "sys", tmp_path, engine_threads=lambda: engine_threads
    )
    assert monitor.sample(100.0, None, None).engine_cpus == ()
    write(TICKS_PER_S, 1, TICKS_PER_S)
    sample = monitor.sample(101.0, None, None)
    assert (sample.engine_cpus, sample.threads_working) == ((1,), 2)
    monitor.forget_rates()
    write(2 * TICKS_PER_S, 2 * TICKS_PER_S, 0)
    assert monitor.sample(900.0, None, None).engine_cpus == ()


def test_the_threads_that_compute_are_known_by_name() -> None:
    assert WorkThread(1)._thread.name == THREAD_NAME
    is_over = threading.Event()
    names = (THREAD_NAME, f"{host.CREW_NAME}1", "saver")
    threads = [threading.Thread(target=is_over.wait, name=name) for name in names]
    before = engine_thread_numbers()
    for thread in threads:
        thread.start()
    numbers = {thread.native_id for thread in threads[:2]}
    assert engine_thread_numbers() - before == numbers
    is_over.set()
    for thread in threads:
        thread.join()
