from pathlib import Path

import pytest

from app import paths
from app.themes import ThemeError, choose_theme, load_theme, load_themes
from tests.app.chat_driver import chatting

FILES = sorted(paths.bundled("themes").glob("*.toml"))
GOOD = (paths.bundled("themes") / "jalopy-dark.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_every_theme_file_loads_and_paints_the_chat(path):
    assert load_theme(path).name == path.stem
    async with chatting(theme=path.stem) as driver:
        assert driver.app.theme == path.stem
        reply = await driver.ask("hello")
        assert reply.text in driver.screen_text()


def test_there_is_a_light_theme_and_one_for_sixteen_colours():
    themes = {theme.name: theme for theme in load_themes()}
    assert not themes["jalopy-light"].dark
    assert themes["jalopy-16"].ansi


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("primary", "primry"), "primry is no key of a theme; did you mean primary"),
        (('"#e0a458"', '"amber-ish"'), "primary is not a colour: amber-ish"),
        (('"#e0a458"', "7"), "primary is not a colour: 7"),
        (("dark = true", 'dark = "yes"'), "dark must be true or false"),
        (("dark = true", ""), "dark is missing"),
        (('"#d9d4c7"', '"#2a2928"'), "foreground on background has a contrast of 1"),
        (("dark = true", "dark = true\nvariables = 3"), "variables must be a table"),
        (("dark = true", "dark ="), "cannot be read"),
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


def test_the_console_gets_its_own_theme_unless_the_user_chose_one():
    available = ["jalopy-dark", "jalopy-16", "nord"]
    assert choose_theme("jalopy-dark", available, on_console=True) == "jalopy-16"
    assert choose_theme("nord", available, on_console=True) == "nord"
    assert choose_theme("jalopy-dark", available, on_console=False) == "jalopy-dark"
    assert choose_theme("gone", available, on_console=False) == "jalopy-dark"


async def test_an_unknown_theme_is_named_in_the_transcript():
    async with chatting(theme="dusk-till-dawn") as driver:
        assert driver.app.theme == "jalopy-dark"
        assert "jalopy-light" in await driver.note("there is no theme 'dusk-till-dawn'")
