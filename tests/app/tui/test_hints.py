"""Hints tell the truth: each key that a screen names works there, and each command exists."""

import ast
import re
from pathlib import Path

import pytest
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget

import app
from app.program.manual import page, topics
from app.tui.actions import find_command
from app.tui.keymap import Keymap, show_key
from app.tui.widgets.message_view import MessageView
from app.tui.widgets.prompt import Prompt
from tests.app.chat_driver import Driver
from tests.app.scenes import SCENES, playing

NAMED_KEY = re.compile(
    r"(?<![\w+])((?:(?:ctrl|shift|alt)\+)+\w+|F(?:1[0-2]|[1-9])|Esc|Enter|Tab|PgUp|PgDn)(?!\w)"
)
LETTER = re.compile(r"(?:^|· |\| )([a-z]) (?=[a-z])")
"""Single letter that begins a hint, as in "r check again · u undo"."""
HINT = re.compile(NAMED_KEY.pattern + r" ([a-z][a-z ]+)")
"""Key with its effect."""
COMMAND = re.compile(r"(?<![\w/.<`~{}*])/([a-z]{2,})(?![\w/.+*{])")
NO_COMMANDS = {"completions", "dev", "etc", "math", "proc", "stat", "sys", "tmp", "token"}
"""Parts of paths, of tags and of "J/token"."""
KEYS_OF_OTHER_SCREENS = {"help", "help-message", "help-threads", "palette"}
"""Scenes that list keys of the screens below them."""


def own_texts(screen: Screen[object]) -> list[str]:
    """Return the lines of a screen's own widgets, without those that a dialog covers."""
    texts: list[str] = []
    for widget in screen.walk_children(Widget):
        if widget.is_attached and all(node.display for node in widget.ancestors_with_self):
            texts += [str(widget.border_title or ""), str(widget.border_subtitle or "")]
            if not list(widget.children):
                width, height = widget.size
                texts += [line.text for line in widget.render_lines(Region(0, 0, width, height))]
    return [text.strip() for text in texts if text.strip()]


def working_keys(screen: Screen[object], keymap: Keymap) -> set[str]:
    """Return the keys that do something now, as hints write them."""
    keys = {show_key(key) for key in screen.active_bindings}
    for widget, scope in ((MessageView, "message"), (Prompt, "prompt")):
        if isinstance(screen.focused, widget):
            keys |= {show_key(key) for key in keymap.scope_keys(scope)}
    return keys


def hinted_keys(texts: list[str], is_hint: bool) -> set[str]:
    keys = {key for text in texts for key in NAMED_KEY.findall(text)}
    if is_hint:
        keys |= {letter for text in texts for letter in LETTER.findall(text)}
    return keys


async def keys_without_effect(driver: Driver) -> set[str]:
    screen = driver.app.screen
    texts = own_texts(screen)
    hints = [text for text in texts if " · " in text or text.startswith(tuple("nry"))]
    named = hinted_keys(texts, is_hint=False) | hinted_keys(hints, is_hint=True)
    return named - working_keys(screen, driver.app.keymap)


def test_keys_are_found_in_hints() -> None:
    texts = ["r check again · u undo", "F9 x", "ctrl+r measures", "a cat · F16 · /Enter"]
    assert hinted_keys(texts[:1], is_hint=True) == {"r", "u"}
    assert hinted_keys(texts, is_hint=False) == {"F9", "ctrl+r", "Enter"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCENES.keys() - KEYS_OF_OTHER_SCREENS))
async def test_every_key_that_a_screen_names_works_there(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with playing(SCENES[name], monkeypatch, tmp_path) as driver:
        assert await keys_without_effect(driver) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCENES.keys() - KEYS_OF_OTHER_SCREENS))
async def test_no_key_has_two_effects_on_a_screen(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with playing(SCENES[name], monkeypatch, tmp_path) as driver:
        effects: dict[str, set[str]] = {}
        for text in own_texts(driver.app.screen):
            for hint in text.split(" · ") if " · " in text else ():
                match = HINT.fullmatch(hint)
                if match:
                    effects.setdefault(match[1], set()).add(match[2])
        assert {key: words for key, words in effects.items() if len(words) > 1} == {}


def texts_of(source: Path) -> list[str]:
    """Return the texts of a program, without docstrings and the like."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
    ]


def unknown_commands(text: str) -> list[str]:
    words = [word for word in COMMAND.findall(text) if word not in NO_COMMANDS]
    return [word for word in words if find_command(word) is None]


def test_every_command_that_a_text_names_exists() -> None:
    folder = Path(app.__path__[0])
    unknown = {
        f"{source.relative_to(folder)}: /{word}"
        for part in ("backend", "cli", "conversations", "documents", "models", "session", "tui")
        for source in (folder / part).rglob("*.py")
        for text in texts_of(source)
        for word in unknown_commands(text)
    }
    assert unknown == set()


@pytest.mark.parametrize("topic", sorted({*topics()} - {"serve", "files"}))
def test_every_command_that_the_manual_names_exists(topic: str) -> None:
    assert unknown_commands(page(topic)) == []
