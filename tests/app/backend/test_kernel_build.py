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

    @property
    def is_complete(self) -> bool:
        return self.n_left == 0

    def step(self) -> bool:
        self.n_left -= 1
        return self.n_left > 0

    def close(self) -> None:
        self.is_closed = True


class FakeBuilder:
    """Starts processes that each build a hundred kernels."""

    def __init__(self) -> None:
        self.is_of_use = True
        self.may_go_on = True
        self.builds: list[FakeBuild] = []

    def is_needed(self) -> bool:
        return self.is_of_use

    def may_build(self, facts: Any, is_running: bool) -> bool:
        assert is_running == any(not build.is_closed for build in self.builds)
        return self.may_go_on

    def start(self) -> Any:
        self.builds.append(FakeBuild(100))
        return self.builds[-1]


def building(engine: Engine, builder: FakeBuilder) -> tuple[KernelBuild, list[str]]:
    completed: list[str] = []
    build = KernelBuild(
        engine.engine_thread,
        lambda: completed.append("built"),
        builder,  # type: ignore[arg-type]
    )
    return build, completed


def poll(kernels: KernelBuild, times: int) -> None:
    for _ in range(times):
        kernels.poll()


def test_kernels_are_built_only_while_the_engine_is_idle(engine: Engine) -> None:
    builder = FakeBuilder()
    kernels, completed = building(engine, builder)
    poll(kernels, 2 * QUIET_PERIODS)
    assert not builder.builds, "no model is open"
    engine.load()
    engine.idle()
    poll(kernels, QUIET_PERIODS - 1)
    assert not builder.builds, "the user may be about to write"
    poll(kernels, 4)
    assert len(builder.builds) == 1
    build = builder.builds[0]
    assert build.n_left == 97

    outbox = engine.engine_thread._outbox
    ready = outbox.state
    writing = dataclasses.replace(ready.status, activity=Activity.WRITING)
    outbox.update(status=writing)
    poll(kernels, 5)
    outbox.update(status=ready.status)
    poll(kernels, QUIET_PERIODS - 1)
    assert build.n_left == 97, "a reply makes it wait, and a while after it"
    assert not completed
    poll(kernels, 200)
    assert len(builder.builds) == 1
    assert build.n_left == 0
    assert completed == ["built"]
    kernels.close()
    assert build.is_closed


def test_a_battery_or_short_memory_ends_the_build_for_a_while(engine: Engine) -> None:
    builder = FakeBuilder()
    builder.may_go_on = False
    kernels, completed = building(engine, builder)
    engine.load()
    engine.idle()
    poll(kernels, 3 * QUIET_PERIODS)
    assert not builder.builds
    builder.may_go_on = True
    poll(kernels, QUIET_PERIODS + 5)
    assert len(builder.builds) == 1
    assert not builder.builds[0].is_closed

    builder.may_go_on = False
    poll(kernels, 2)
    assert builder.builds[0].is_closed
    assert not completed
    builder.may_go_on = True
    poll(kernels, QUIET_PERIODS + 200)
    assert len(builder.builds) == 2
    assert completed == ["built"]


def test_nothing_is_started_that_is_not_needed(engine: Engine) -> None:
    builder = FakeBuilder()
    builder.is_of_use = False
    kernels, completed = building(engine, builder)
    engine.load()
    engine.idle()
    poll(kernels, 5 * QUIET_PERIODS)
    kernels.close()
    assert not builder.builds
    assert not completed
