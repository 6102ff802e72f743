"""Tests that the memory of a closed model is given back, whichever screens were shown."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import pytest

from engine import Model, Session
from tests.app.chat_driver import Driver, chatting_for_real
from tests.engine import tiny_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps"),
]

SCREENS = ("f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "ctrl+p", "f2")
NAMES = ("first", "second", "third")
N_WEIGHTS = 4 * 1024 * 4096
"""Weights of the feed-forward layers, in blocks of 34 bytes for 32."""
N_COPIED_BYTES = N_WEIGHTS * 34 // 32


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    """Return model files of equal size whose weights are larger than the rest of a session."""
    return {
        name: tiny_gguf.write(
            tmp_path / f"{name}.gguf",
            "llama",
            "Q8_0",
            dim=1024,
            hidden_dim=4096,
            context_length=512,
            seed=seed,
        )
        for seed, name in enumerate(NAMES)
    }


def mapped_files(models: dict[str, Path]) -> set[str]:
    """Return the names of the models that are mapped now."""
    maps = Path("/proc/self/maps").read_text()
    return {name for name, path in models.items() if str(path) in maps}


def anonymous_bytes() -> int:
    """Return the allocated memory that is in use."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert match is not None
    return 1024 * int(match[1])


def living() -> list[str]:
    """Return the models and sessions that were not freed."""
    gc.collect()
    return sorted(
        type(item).__name__ for item in gc.get_objects() if isinstance(item, (Model, Session))
    )


async def show_every_screen(driver: Driver) -> None:
    """Show every screen once, and the strip, long enough for its figures."""
    for key in SCREENS:
        await driver.pilot.press(key)
        await driver.until(lambda: driver.app.screen is not driver.chat, f"{key} shows a screen")
        await driver.pilot.pause(0.1)
        for _ in range(3):
            if driver.app.screen is not driver.chat:
                await driver.pilot.press("escape")
                await driver.pilot.pause()
        await driver.until(lambda: driver.app.screen is driver.chat, f"{key} is closed")
    for _ in range(2):
        await driver.pilot.press("ctrl+t")
        await driver.pilot.pause(0.1)


async def open_model(driver: Driver, path: Path) -> None:
    """Open another model and wait until it is ready."""
    await driver.say("/new")
    await driver.say(f"/model {path}")
    await driver.until(
        lambda: (
            driver.chat.core.chat_session.model is not None
            and driver.chat.core.chat_session.model.path == str(path)
        ),
        f"{path.name} is open",
    )


async def only_mapped(driver: Driver, models: dict[str, Path], name: str) -> None:
    """Wait until no file but that of one model is mapped: a thread may be copying weights."""
    await driver.until(lambda: mapped_files(models) <= {name}, f"only {name} is mapped")


@pytest.mark.parametrize("weights", ["mmap", "huge"])
async def test_closed_models_leave_no_memory(models: dict[str, Path], weights: str) -> None:
    async with chatting_for_real(models["first"], weights=weights) as driver:
        await show_every_screen(driver)
        await driver.ask("hello")
        await open_model(driver, models["second"])
        await only_mapped(driver, models, "second")
        usual_bytes = anonymous_bytes()
        for name in ("third", "first", "second"):
            await show_every_screen(driver)
            await open_model(driver, models[name])
            await only_mapped(driver, models, name)
        assert living() == ["Model", "Session"]
        assert anonymous_bytes() < usual_bytes + N_COPIED_BYTES
