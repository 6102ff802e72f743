"""Places in a long encoding where somebody may look whether it is still wanted, or do something
else for a moment."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PERIOD_STEPS = 1 << 10
"""Words or merges between two pauses: a few milliseconds."""

_pause: ContextVar[Callable[[], object] | None] = ContextVar("pause", default=None)


@contextmanager
def pausing(pause: Callable[[], object]) -> Iterator[None]:
    """Have a function called now and then while this thread encodes text; what it raises ends the
    encoding."""
    token = _pause.set(pause)
    try:
        yield
    finally:
        _pause.reset(token)


def pause() -> None:
    """Call the function that this thread was given, if there is one."""
    wanted = _pause.get()
    if wanted is not None:
        wanted()
