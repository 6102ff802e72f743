"""Background work in daemon threads.

A thread that hangs does not delay quitting; asyncio's executor would be joined at exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Run ``work`` in a thread named "jalopy-NAME" and return the future of its result."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # a cancelled waiter does not cancel the work
    threading.Thread(target=fulfil, args=[answer, work], name=f"jalopy-{name}", daemon=True).start()
    return answer


def fulfil(answer: Future[T], work: Callable[[], T]) -> None:
    """Run ``work`` in this thread and set the future to its result or exception."""
    try:
        result = work()
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result(result)
