"""The settings screen: values with their sources, and changes in the user's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import OptionList

from app.program.settings import Source, built_in_settings, load_settings, override, setting_keys
from app.session.commands import sampling_in_effect
from app.tui.screens.settings import FAVOURITES, TITLES, SettingsScreen, meanings
from tests.app.chat_driver import Driver, chatting
from tests.app.own_settings import own_settings

pytestmark = pytest.mark.slow

MINE = "# mine\nthreads = 1  # one\n"


@pytest.fixture
def file() -> Path:
    return own_settings(MINE)


async def on(driver: Driver, words: str) -> None:
    """Filter the list down to one setting."""
    screen = driver.app.screen
    assert isinstance(screen, SettingsScreen)
    screen.apply_filter(words)
    await driver.shows(f"filter: {words}_")


async def refused(driver: Driver) -> None:
    """Wait for the line about the damaged file, which wraps depending on the path's length."""
    await driver.until(
        lambda: "is not valid TOML" in " ".join(driver.screen_text().split()), "the refusal"
    )


def test_every_setting_has_a_meaning() -> None:
    assert list(meanings()) == list(setting_keys())
    assert all(group and text for group, text in meanings().values())


def test_every_setting_has_a_plain_title() -> None:
    assert set(TITLES) == set(setting_keys())
    assert len(set(TITLES.values())) == len(TITLES)
    assert all(len(title) <= 27 and "_" not in title for title in TITLES.values())
    assert set(FAVOURITES) <= set(TITLES)


async def test_values_are_shown_with_source_and_changed_in_the_file(file: Path) -> None:
    settings = override(load_settings(), "context_size", 512, "--ctx")
    changes = {name: getattr(settings, name) for name in ("threads", "context_size", "sources")}
    async with chatting(size=(100, 40), **changes) as driver:
        await driver.say("/settings")
        await driver.shows(f"2 of {len(list(setting_keys()))} changed")
        text = driver.screen_text()
        assert "Threads for writing          1" in text
        rows = [row for row in text.splitlines() if row.startswith("│   ")]
        assert not any("default" in row for row in rows), "only other sources are named"
        assert Source.FILE.value in text
        assert Source.COMMAND_LINE.value in text
        await on(driver, "checkpoints")
        await driver.pilot.press("enter", *["backspace"] * 3, "7", "x", "enter")
        await driver.shows('checkpoints_mb is "7x"; allowed: a whole number')
        assert file.read_text() == MINE
        await driver.pilot.press("backspace", "enter")
        await driver.shows("checkpoints_mb = 7 (from the next start)")
        assert load_settings().checkpoints_mb == 7
        await driver.pilot.press("delete")
        await driver.shows("Reset checkpoints_mb to its default")
        assert file.read_text() == MINE
        await driver.pilot.press("enter", "9", "escape")
        await driver.hides("checkpoints_mb = ")
        assert file.read_text() == MINE


@pytest.mark.smoke
async def test_live_settings_change_at_once(file: Path) -> None:
    async with chatting(size=(80, 24)) as driver:
        await driver.say("/settings")
        await driver.until(lambda: isinstance(driver.app.screen, SettingsScreen), "shown")
        await on(driver, "sampling.temperature")
        await driver.pilot.press("enter", "9", "ctrl+u", "0", "enter")
        await driver.shows("Saved: sampling.temperature = 0.0")
        core = driver.chat.core
        temperature = sampling_in_effect(core.engine_thread, core.chat_session, "temperature")
        assert temperature == (0.0, Source.FILE)
        await on(driver, "notify")
        await driver.pilot.press("enter")
        await driver.shows("Saved: notify = off")
        assert driver.app.live.now.notify == "off"
        await on(driver, "theme")
        before = driver.app.theme
        await driver.pilot.press("enter")
        await driver.shows("Saved: theme = ")
        assert driver.app.theme == load_settings().theme != before
        await on(driver, "prefill_threads")
        await driver.pilot.press("enter", "backspace", "3", "enter")
        await driver.shows("Saved: prefill_threads = 3")
        engine_thread = driver.app.engine_thread
        await driver.until(
            lambda: (
                engine_thread.state.threads is not None
                and engine_thread.state.threads.now.prefill == 3
            ),
            "3 read",
        )


async def test_the_cursor_skips_headings_of_settings() -> None:
    async with chatting(size=(80, 24)) as driver:
        await driver.say("/settings")
        await driver.shows("Context")
        screen = driver.app.screen
        assert isinstance(screen, SettingsScreen)
        await driver.pilot.press(*["down"] * len(FAVOURITES))
        assert screen.highlighted() == "server"
        await driver.pilot.press("end")
        await driver.until(lambda: "Often changed" not in driver.screen_text(), "the end")
        await driver.pilot.press("home")
        await driver.shows("Often changed")
        assert screen.highlighted() == "model"
        await on(driver, "sampling same text")
        await driver.shows("in the file: sampling.seed")


async def test_a_click_changes_and_a_damaged_file_is_never_replaced(file: Path) -> None:
    file.write_text("threads = ")
    first = (4, 1)  # below the heading of its group
    async with chatting(size=(100, 24)) as driver:
        await driver.say("/settings")
        await driver.until(lambda: isinstance(driver.app.screen, SettingsScreen), "shown")
        await refused(driver)
        await on(driver, "resume")
        await driver.pilot.click(OptionList, offset=first)
        await refused(driver)
        assert file.read_text() == "threads = "
        file.write_text(MINE)
        await driver.pilot.click(OptionList, offset=first)
        await driver.shows("resume = last (from the next start)")
        assert load_settings().resume == "last"
    assert built_in_settings().resume == "offer"
