"""Pauses in a long encoding, in which a caller can check for a cancel or do other work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PERIOD_STEPS = 1 << 10
"""Words or merges between two pauses: a few milliseconds."""

_pause: ContextVar[Callable[[], object] | None] = ContextVar("pause", default=None)


@contextmanager
def pausing(pause: Callable[[], object]) -> Iterator[None]:
    """Call a function every few milliseconds while this thread encodes text. Its exceptions end the
    encoding."""
    token = _pause.set(pause)
    try:
        yield
    finally:
        _pause.reset(token)


def pause() -> None:
    """Call this thread's function of ``pausing``, if there is one."""
    function = _pause.get()
    if function is not None:
        function()
