"""Tests of building machine code while the engine is idle."""

from __future__ import annotations

import dataclasses
from typing import Any

from app.backend.kernel_build import QUIET_PERIODS, KernelBuild
from app.backend.status import Activity
from tests.app.backend.engine_driver import Engine


class FakeBuild:
    """Process that ends after some kernels."""

    def __init__(self, n_kernels: int) -> None:
        self.n_left = n_kernels
        self.is_closed = False

    def step(self) -> bool:
        self.n_left -= 1
        return self.n_left > 0

    def close(self) -> None:
        self.is_closed = True


def poll(kernels: KernelBuild, times: int) -> None:
    for _ in range(times):
        kernels.poll()


def test_kernels_are_built_only_while_the_engine_is_idle(engine: Engine) -> None:
    build = FakeBuild(100)
    starts: list[Any] = []

    def start(facts: Any) -> Any:
        starts.append(facts)
        return build

    kernels = KernelBuild(engine.engine_thread, start)
    poll(kernels, 2 * QUIET_PERIODS)
    assert not starts, "no model is open"
    engine.load()
    engine.idle()
    poll(kernels, QUIET_PERIODS - 1)
    assert not starts, "the user may be about to write"
    poll(kernels, 3)
    assert len(starts) == 1
    assert build.n_left == 97

    outbox = engine.engine_thread._outbox
    ready = outbox.state
    writing = dataclasses.replace(ready.status, activity=Activity.WRITING)
    outbox.update(status=writing)
    poll(kernels, 5)
    outbox.update(status=ready.status)
    poll(kernels, QUIET_PERIODS - 1)
    assert build.n_left == 97, "a reply makes it wait, and a while after it"
    poll(kernels, 200)
    assert len(starts) == 1
    assert build.n_left == 0
    kernels.close()
    assert build.is_closed


def test_nothing_is_started_again_that_is_not_needed(engine: Engine) -> None:
    starts: list[Any] = []
    kernels = KernelBuild(engine.engine_thread, starts.append)
    engine.load()
    engine.idle()
    poll(kernels, 5 * QUIET_PERIODS)
    assert len(starts) == 1
    kernels.close()
