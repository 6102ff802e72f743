import os
import signal
import threading
from collections.abc import Callable

import pytest

from app.backend.work_thread import start_work_thread


def test_work_runs_in_another_thread_and_returns_its_result() -> None:
    engine = start_work_thread()
    first = engine.run(threading.get_ident)
    second = engine.run(threading.get_ident)
    assert first == second != threading.get_ident()


def test_an_exception_reaches_the_caller_and_the_thread_stays() -> None:
    engine = start_work_thread()
    with pytest.raises(ZeroDivisionError):
        engine.run(lambda: 1 // 0)
    assert engine.run(lambda: 7) == 7


def test_the_first_interrupt_stops_the_work_and_keeps_its_result() -> None:
    stopped = threading.Event()

    def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)  # Python delivers it to the waiting main thread
        assert stopped.wait(60)
        return "partial"

    assert start_work_thread().run(work, on_interrupt=stopped.set) == "partial"


def test_an_interrupt_while_work_is_submitted_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()
    n_begun = 0

    def work() -> str:
        nonlocal n_begun
        n_begun += 1
        assert stopped.wait(60)
        return "partial"

    engine = start_work_thread()
    submit = engine.submit
    interrupts = iter([signal.SIGINT])

    def submit_interrupted(task: Callable[[], object]) -> None:
        submit(task)
        for number in interrupts:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(engine, "submit", submit_interrupted)
    assert engine.run(work, on_interrupt=stopped.set) == "partial"
    assert engine.run(lambda: 7) == 7
    assert n_begun == 1


def test_an_interrupt_is_raised_at_once_if_work_cannot_stop() -> None:
    release = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        release.wait(60)

    with pytest.raises(KeyboardInterrupt):
        start_work_thread().run(work)
    release.set()


def test_a_second_interrupt_abandons_the_work() -> None:
    release = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        release.wait(60)

    with pytest.raises(KeyboardInterrupt):
        start_work_thread().run(work, on_interrupt=lambda: os.kill(os.getpid(), signal.SIGINT))
    release.set()
