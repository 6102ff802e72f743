"""Work that no one waits for, in a daemon thread: what does not answer must not hold up quitting.

Not asyncio's executor, which is joined at exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Begin the work in a thread, named after "jalopy-"; its result or its exception is the
    future's."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # one who waits for it no longer does not cancel it
    threading.Thread(target=fulfil, args=[answer, work], name=f"jalopy-{name}", daemon=True).start()
    return answer


def fulfil(answer: Future[T], work: Callable[[], T]) -> None:
    """Do the work in this thread; its result or its exception becomes the future's."""
    try:
        result = work()
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result(result)
