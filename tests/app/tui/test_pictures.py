"""Pictures of every screen in all sizes, in 16 colours, without colour, and on the console."""

import importlib
import pkgutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.color import ColorType
from textual.filter import NoColor
from textual.screen import Screen

from app.text.glyphs import choose_glyphs
from app.tui import screens
from app.tui.chat import screen as chat_screen
from app.tui.themes import CONSOLE_THEME
from app.tui.widgets.message_view import Note
from tests.app.chat_driver import Driver
from tests.app.picture import (
    FOLDER,
    IS_DRAWING,
    Picture,
    kinds_of_colours,
    styles_of,
    text_of,
)
from tests.app.scenes import SCENES, playing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
BASE = "80x24"
TINY = [(20, 6), (3, 2), (1, 1)]
SIXTEEN = {ColorType.DEFAULT, ColorType.STANDARD}
BEGUN_THERE = (
    "first-start",
    "chat",
    "speed",
    "palette",
    "themes",
    "writing",
    "editing",
    "editing-reply",
)
"""Scenes that are played again in each kind of terminal. Other scenes are played once, and then the
terminal changes."""
SHOWN_BY_OTHERS = frozenset(
    (
        "compiling",
        "thinking",
        "queued",
        "nearly-full",
        "help",
        "help-message",
        "speed-empty",
        "models",
        "models-none",
        "conversations-search",
        "conversations-none",
        "documents-none",
        "resumed",
        "download",
        "smaller",
        "threads",
        "threads-hybrid",
        "threads-two-sockets",
        "threads-virtual-machine",
        "threads-no-model",
    )
)
"""Scenes without styles and characters of their own, which need one kind of terminal only."""


@pytest.mark.parametrize("name", SCENES)
async def test_scenes_look_right_in_every_kind_and_size(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = SCENES[name]
    picture = Picture(name)
    has_kinds = name not in BEGUN_THERE and name not in SHOWN_BY_OTHERS
    async with playing(scene, monkeypatch, tmp_path) as driver:
        await picture.check(BASE, driver)
        if has_kinds:
            driver.app.ansi_color = driver.app.no_color = True
            driver.app._filters.append(NoColor())
            draw_again(driver)
            await check_without_colour(picture, driver)
            driver.app.ansi_color = None
            driver.app.no_color = False
            driver.app._filters.pop()
        for columns, rows in scene.sizes[1:]:
            await driver.pilot.resize_terminal(columns, rows)
            shown = await picture.check(f"{columns}x{rows}", driver)
            assert max(map(len, shown.splitlines())) <= columns
        if has_kinds:
            monkeypatch.setenv("TERM", "linux")
            driver.app.set_class(True, "-console")
            driver.app.theme = CONSOLE_THEME
            draw_again(driver)
            await driver.pilot.resize_terminal(80, 24)
            await check_on_console(picture, driver)
        for columns, rows in TINY:
            await driver.pilot.resize_terminal(columns, rows)


def draw_again(driver: Driver) -> None:
    """Redraw everything after a change of the terminal."""
    screens = driver.app.screen_stack
    visible = [node for screen in screens for node in screen.walk_children(with_self=True)]
    lists = [screen._listing for screen in screens if hasattr(screen, "_listing")]
    for node in (*visible, *lists):
        if hasattr(node, "_glyphs"):
            node._glyphs = choose_glyphs()
    for node in visible:
        node._styles_cache.clear()
        node.refresh()
        if isinstance(node, Note):
            node.say(node.text, node._style)
    driver.app.refresh_css(animate=False)


async def check_on_console(picture: Picture, driver: Driver) -> None:
    shown = await picture.check(f"{BASE} on the Linux console", driver)
    # the font has the bullet too, where the encoding has a bell
    shown.replace("•", "").encode("cp437")
    await picture.check(f"{BASE} in 16 colours", driver, styles_of)
    assert kinds_of_colours(driver) <= SIXTEEN


async def check_without_colour(picture: Picture, driver: Driver) -> None:
    await driver.until(lambda: text_of(driver) == picture.sections()[BASE], "the same is said")
    await picture.check(f"{BASE} without colour", driver, styles_of)
    assert kinds_of_colours(driver) == {ColorType.DEFAULT}


@pytest.mark.parametrize("name", BEGUN_THERE)
async def test_scenes_work_on_the_linux_console(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TERM", "linux")
    async with playing(SCENES[name], monkeypatch, tmp_path) as driver:
        await check_on_console(Picture(name), driver)


@pytest.mark.parametrize("name", BEGUN_THERE)
async def test_scenes_work_without_colour(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with playing(SCENES[name], monkeypatch, tmp_path) as driver:
        await check_without_colour(Picture(name), driver)


@pytest.mark.smoke
async def test_the_theme_of_16_colours_says_the_same_in_any_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with playing(SCENES["chat"], monkeypatch, tmp_path) as driver:
        driver.app.theme = "jalopy-16"
        await driver.until(lambda: kinds_of_colours(driver) <= SIXTEEN, "16 colours")
        assert text_of(driver) == Picture("chat").sections()[BASE]


async def test_keys_are_harmless_on_invisible_screens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with playing(SCENES["chat"], monkeypatch, tmp_path) as driver:
        for size in TINY:
            await driver.pilot.resize_terminal(*size)
            for keys in (
                ("ctrl+up",),
                ("t",),
                ("e",),
                ("escape",),
                ("ctrl+up", "ctrl+up", "escape"),
            ):
                await driver.pilot.press(*keys)
        await driver.pilot.resize_terminal(80, 24)
        await driver.until(lambda: "Power it off" in driver.screen_text())


def test_every_screen_has_a_picture() -> None:
    modules = [chat_screen] + [
        importlib.import_module(f"{screens.__name__}.{module.name}")
        for module in pkgutil.iter_modules(screens.__path__)
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    own = {value for value in classes if issubclass(value, Screen)}
    bases = {base for value in own for base in value.__mro__[1:]}
    assert {value.__name__ for value in own - bases} == {scene.screen for scene in SCENES.values()}


def test_every_picture_has_a_scene() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCENES)


def test_the_pictures_are_compared_and_not_drawn() -> None:
    assert not IS_DRAWING, (
        "JALOPY_WRITE_PICTURES is set: look at what was drawn, and run without it"
    )


@pytest.mark.parametrize("name", ["chat", "speed"])
def test_the_readme_shows_a_real_model(name: str) -> None:
    drawn = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    words = " ".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ")
    assert "http" not in drawn.replace("http://www.w3.org/", "")
    assert "qwen2.5-coder-0.5b-instruct" in words
    assert "▼1" in words
    assert f"docs/pictures/{name}.svg" in (ROOT / "README.md").read_text(encoding="utf-8")
