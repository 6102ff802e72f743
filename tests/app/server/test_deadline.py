"""Deadlines: their function is called in time, once, and never after they were cleared."""

import asyncio
from collections.abc import Callable

from app.server.deadline import Deadline


def calls_of(use: Callable[[Deadline], None], wait_s: float = 0.05) -> int:
    """Return how often a deadline's function is called until some time after its use."""
    calls: list[None] = []

    async def run() -> None:
        deadline = Deadline(lambda: calls.append(None))
        use(deadline)
        await asyncio.sleep(wait_s)
        assert deadline.was_reached == bool(calls)
        deadline.close()

    asyncio.run(run())
    return len(calls)


def test_the_function_is_called_once() -> None:
    assert calls_of(lambda deadline: deadline.set(0.001)) == 1


def test_a_later_deadline_replaces_an_earlier_one() -> None:
    def use(deadline: Deadline) -> None:
        deadline.set(0.001)
        deadline.set(60.0)

    assert calls_of(use) == 0


def test_an_earlier_deadline_replaces_a_later_one() -> None:
    def use(deadline: Deadline) -> None:
        deadline.set(60.0)
        deadline.set(0.001)

    assert calls_of(use) == 1


def test_a_cleared_deadline_is_not_reached() -> None:
    def use(deadline: Deadline) -> None:
        deadline.set(0.001)
        deadline.clear()

    assert calls_of(use) == 0


def test_a_deadline_can_be_set_after_it_was_cleared() -> None:
    def use(deadline: Deadline) -> None:
        deadline.set(0.001)
        deadline.clear()
        deadline.set(0.002)

    assert calls_of(use) == 1


def test_a_closed_deadline_leaves_no_timer() -> None:
    async def run() -> int:
        deadline = Deadline(lambda: None)
        deadline.set(60.0)
        deadline.close()
        loop = asyncio.get_running_loop()
        return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]

    assert asyncio.run(run()) == 0
