import dataclasses
import os
from pathlib import Path

import pytest
from rich.console import Console
from textual.color import Color
from textual.geometry import Size
from textual.theme import BUILTIN_THEMES, Theme
from textual.widgets import OptionList

from app.program import paths, state
from app.program.settings import built_in_settings
from app.tui.app import JalopyApp
from app.tui.screens.theme_picker import ThemePicker
from app.tui.themes import (
    MIN_CONTRAST,
    ThemeError,
    choose_theme,
    contrast,
    load_theme,
    load_themes,
    load_user_themes,
    meanings,
)
from tests.app.chat_driver import Driver, chatting, options_for
from tests.app.fake_engine import Script

SCROLLBAR_GROUNDS = [
    "scrollbar-background",
    "scrollbar-background-hover",
    "scrollbar-background-active",
    "scrollbar-corner-color",
]
FILES = sorted(paths.bundled("themes").glob("*.toml"))
ALL_THEMES = [*BUILTIN_THEMES.values(), *map(load_theme, FILES)]
GOOD = (paths.bundled("themes") / "jalopy-dark.toml").read_text(encoding="utf-8")


async def test_every_theme_file_loads_and_paints_the_chat():
    async with chatting() as driver:
        reply = await driver.ask("hello")
        for path in FILES:
            assert load_theme(path).name == path.stem
            driver.app.theme = path.stem
            await driver.pilot.pause()
            await driver.shows(reply.text)


def test_there_is_a_light_theme_and_one_for_sixteen_colours():
    themes = {theme.name: theme for theme in load_themes()}
    assert not themes["jalopy-light"].dark
    assert themes["jalopy-16"].ansi


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("primary", "primry"), "primry is not a key of a theme; did you mean primary"),
        (('"#e8a04c"', '"amber-ish"'), "primary is not a colour: amber-ish"),
        (('"#e8a04c"', "7"), "primary is not a colour: 7"),
        (("dark = true", 'dark = "yes"'), "dark must be true or false"),
        (("dark = true", ""), "dark is missing"),
        (('"#d9d4c7"', '"#2a2928"'), "foreground on background has a contrast of 1"),
        (("dark = true", "dark = true\nvariables = 3"), "variables must be a table"),
        (("dark = true", "dark ="), "is not valid TOML"),
        (('"#e8a04c"', '"#e8a04c 50%"'), "primary is not a colour: #e8a04c 50%"),
        (
            ("dark = true", 'dark = true\nvariables = {border = "red; } Screen {"}'),
            "variables.border is not a colour",
        ),
        (
            ("dark = true", 'dark = true\nvariables = {muted-style = "loud"}'),
            "variables.muted-style is not a style",
        ),
        (("dark = true", 'dark = true\nvariables = {"a b" = "red"}'), "a b is no variable's name"),
    ],
)
def test_a_broken_theme_is_refused_by_file_and_key(tmp_path: Path, change, message):
    path = tmp_path / "broken.toml"
    path.write_text(GOOD.replace(*change, 1), encoding="utf-8")
    with pytest.raises(ThemeError) as refusal:
        load_theme(path)
    assert str(refusal.value).startswith("broken.toml: ")
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_colour_variable_is_checked_too(tmp_path: Path):
    path = tmp_path / "broken.toml"
    path.write_text(GOOD + '\n[variables]\nborder = "nope"\n', encoding="utf-8")
    with pytest.raises(ThemeError, match="border is not a colour"):
        load_theme(path)


def test_the_console_gets_its_own_theme_unless_one_is_chosen():
    available = ["jalopy-dark", "jalopy-16", "nord"]
    assert choose_theme("jalopy-dark", available, has_few_colours=True) == "jalopy-16"
    assert choose_theme("nord", available, has_few_colours=True) == "nord"
    assert choose_theme("jalopy-dark", available, has_few_colours=False) == "jalopy-dark"
    assert choose_theme("gone", available, has_few_colours=False) == "jalopy-dark"


async def test_an_unknown_theme_is_named_in_the_transcript():
    async with chatting(theme="dusk-till-dawn") as driver:
        assert driver.app.theme == "jalopy-dark"
        assert "jalopy-light" in await driver.note("Unknown theme: 'dusk-till-dawn'")


def test_there_are_six_themes_and_one_has_high_contrast():
    themes = {theme.name: theme for theme in load_themes()}
    assert len(themes) >= 6
    high = themes["jalopy-contrast"]
    colours = (
        high.primary,
        high.secondary,
        high.accent,
        high.success,
        high.warning,
        high.error,
        high.foreground,
    )
    background = Color.parse(high.background)
    assert min(contrast(Color.parse(colour), background) for colour in colours) >= 7.0


async def test_a_theme_chosen_by_name_is_saved():
    async with chatting(theme="jalopy-light") as driver:
        assert driver.app.theme == "jalopy-light"
        await driver.say("/theme nord")
        await driver.note("theme: nord, until you leave: your settings name jalopy-light")
        assert driver.app.theme == "nord"
        assert state.load_state()[0].theme == "nord"
        await driver.say("/theme nrod")
        assert "nearest: nord" in await driver.note("Unknown theme: 'nrod'")
        assert driver.app.theme == "nord"


def test_settings_and_console_override_the_saved_theme(monkeypatch):
    def theme_of(setting: str, remembered: str) -> str:
        settings = dataclasses.replace(built_in_settings(), theme=setting)
        return JalopyApp(settings, options=options_for(Script()), remembered_theme=remembered).theme

    monkeypatch.delenv("TERM", raising=False)
    assert theme_of("", "nord") == "nord"
    assert theme_of("jalopy-light", "nord") == "jalopy-light"
    assert theme_of("", "gone") == "jalopy-dark"
    monkeypatch.setenv("TERM", "linux")
    assert theme_of("", "nord") == "jalopy-16"


async def picker_of(driver: Driver) -> None:
    """Wait until the list of themes has the focus."""
    await driver.until(lambda: isinstance(driver.app.screen, ThemePicker))
    await driver.until(lambda: isinstance(driver.app.focused, OptionList))


async def test_the_picker_shows_each_theme_and_keeps_the_chosen_one():
    async with chatting() as driver:
        assert await colours_after_escape(driver) == "jalopy-dark"
        assert state.load_state()[0].theme is None
        await driver.say("/theme")
        await picker_of(driver)
        lines = driver.app.screen.query_one(OptionList)
        for columns in range(6):  # laid out in no width at all
            size = Size(columns, 2)
            assert lines.get_content_height(size, size, columns) >= lines.option_count
        await driver.pilot.press("down")
        await driver.until(lambda: driver.app.theme == "jalopy-midnight")
        await driver.pilot.press("enter")
        await driver.note("theme: jalopy-midnight")
        assert driver.app.screen is driver.chat
        assert state.load_state()[0].theme == "jalopy-midnight"
        assert await colours_after_escape(driver) == "jalopy-midnight"


async def colours_after_escape(driver: Driver) -> str:
    """Preview the last theme of the list and close it."""
    before = driver.app.theme
    driver.app.action_theme()
    await picker_of(driver)
    await driver.pilot.press("end")
    await driver.until(lambda: driver.app.theme != before)
    await driver.pilot.press("escape")
    await driver.until(lambda: driver.app.screen is driver.chat)
    return driver.app.theme


@pytest.mark.parametrize(
    ("term", "colorterm", "theme"),
    [
        ("xterm", "", "jalopy-16"),
        ("screen", "", "jalopy-16"),
        ("xterm-256color", "", "jalopy-dark"),
    ],
)
def test_a_terminal_of_16_colours_gets_the_theme_made_for_it(monkeypatch, term, colorterm, theme):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLORTERM", colorterm)
    monkeypatch.delenv("NO_COLOR", raising=False)
    settings = dataclasses.replace(built_in_settings(), theme="")
    app = JalopyApp(settings, options=options_for(Script()))
    app.console = Console(force_terminal=True)
    assert choose_theme("", app.available_themes, app._has_few_colours()) == theme
    assert choose_theme("nord", app.available_themes, app._has_few_colours()) == "nord"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_colours_with_a_meaning_differ_and_scroll_bars_match(path):
    theme = load_theme(path)
    variables = theme.to_color_system().generate() | theme.variables
    found = {**variables, **meanings(theme, variables)}
    assert {
        "muted",
        "frame",
        "unfilled",
        "reading",
        "writing",
        "level-0",
        "level-4",
        "area-0",
    } <= set(found)
    assert found["reading"] != found["writing"]
    assert len({found[f"level-{number}"] for number in (0, 2, 4)}) == 3
    if not theme.ansi:
        assert Color.parse(found["scrollbar-background"]) == Color.parse(theme.background)
        for name in ("muted", "reading", "writing"):
            assert contrast(Color.parse(found[name]), Color.parse(theme.background)) >= 4.5, name


def shown_variables(theme: Theme) -> dict[str, str]:
    """Return the CSS variables of a theme as the application has them."""
    variables = theme.to_color_system().generate() | theme.variables
    return {**variables, **meanings(theme, variables)}


@pytest.mark.parametrize("theme", ALL_THEMES, ids=lambda theme: theme.name)
def test_frames_titles_and_bars_are_legible_in_every_theme(theme: Theme):
    found = shown_variables(theme)
    if theme.ansi:
        assert {found[name] for name in SCROLLBAR_GROUNDS} == {"ansi_default"}, "no slab"
        return
    ink = Color.parse(found["foreground"])
    for ground in (Color.parse(found["background"]), Color.parse(found["surface"])):
        most = contrast(ink, ground)
        assert contrast(Color.parse(found["border"]), ground) >= 3.0
        for name in ("title", "muted"):
            least = min(MIN_CONTRAST, most)
            assert contrast(Color.parse(found[name]), ground) >= least - 0.05, name


async def test_the_picker_groups_themes_and_leaves_room():
    async with chatting(size=(80, 24)) as driver:
        driver.app.action_theme()
        await picker_of(driver)
        themes = driver.app.screen.query_one(OptionList)
        assert themes.outer_size.width <= 32, "the preview is next to it"
        assert driver.screen_text().count("16 colours") <= 1
        names = [option.prompt.plain.strip() for option in themes.options]
        assert names[:2] == ["Dark", "jalopy-contrast"]
        assert names.index("Light") < names.index("jalopy-mint") < names.index("For 16 colours")


async def test_user_themes_work_and_broken_ones_are_reported():
    directory = paths.themes_dir()
    assert directory is not None
    directory.mkdir(parents=True)
    bundled = (paths.bundled("themes") / "jalopy-dark.toml").read_text(encoding="utf-8")
    (directory / "mine.toml").write_text(bundled)
    (directory / "broken.toml").write_text("dark = 1")
    async with chatting(theme="mine") as driver:
        assert driver.app.theme == "mine"
        await driver.note("broken.toml: ")


def _link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _deep(path: Path) -> None:
    path.write_text("x = " + "[" * 50_000 + "]" * 50_000, encoding="utf-8")


def _dotted(path: Path) -> None:
    path.write_text(GOOD + "\n[variables]\n" + "a." * 400 + 'a = "#ffffff"\n', encoding="utf-8")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 33)


def _latin(path: Path) -> None:
    path.write_bytes(b"# caf\xe9\n" + GOOD.encode())


@pytest.mark.parametrize(
    "make", [_link_to_zero, os.mkfifo, Path.mkdir, _deep, _dotted, _huge, _latin]
)
def test_a_hostile_theme_is_reported_in_one_line(make):
    directory = paths.themes_dir()
    assert directory is not None
    directory.mkdir(parents=True)
    (directory / "mine.toml").write_text(GOOD, encoding="utf-8")
    make(directory / "bad.toml")
    themes, line = load_user_themes()
    assert [theme.name for theme in themes] == ["mine"]
    assert "bad.toml: " in line
    assert line.isprintable()


def test_a_file_in_place_of_the_themes_folder_is_named():
    directory = paths.themes_dir()
    assert directory is not None
    directory.parent.mkdir(parents=True)
    directory.write_text("", encoding="utf-8")
    assert load_user_themes() == ([], f"{directory}: Not a directory (your themes are not loaded)")


def test_several_unusable_themes_are_counted_in_one_line():
    directory = paths.themes_dir()
    assert directory is not None
    directory.mkdir(parents=True)
    for number in range(3):
        (directory / f"bad-{number}.toml").write_text("dark = 1", encoding="utf-8")
    _, line = load_user_themes()
    assert line.startswith("bad-0.toml: ")
    assert line.endswith("(and 2 other lines like this)")
