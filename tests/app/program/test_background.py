import threading

import pytest

from app.program.background import in_background


def test_work_runs_in_a_separate_daemon_thread() -> None:
    thread = in_background(threading.current_thread, "test").result(60)
    assert thread is not threading.current_thread()
    assert (thread.name, thread.daemon) == ("jalopy-test", True)


def test_an_error_is_raised_when_the_result_is_requested() -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        in_background(fail, "test").result(60)
