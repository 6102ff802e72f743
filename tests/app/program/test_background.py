import threading

import pytest

from app.program.background import in_background


def test_the_work_is_done_in_a_daemon_thread_of_its_own() -> None:
    thread = in_background(threading.current_thread, "test").result(60)
    assert thread is not threading.current_thread()
    assert (thread.name, thread.daemon) == ("jalopy-test", True)


def test_what_is_raised_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        in_background(fail, "test").result(60)
