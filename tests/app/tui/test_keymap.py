import ast
import re
from pathlib import Path

import pytest

from app.program import paths
from app.tui import app, screens, widgets
from app.tui.actions import ACTIONS
from app.tui.keymap import Keymap, KeymapError, default_file, load_keymap, show_key
from tests.app.chat_driver import chatting


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keymap.toml"


def keymap_of(file: Path, text: str) -> Keymap:
    file.write_text(text, encoding="utf-8")
    return load_keymap(file)


def test_the_bundled_file_lists_every_action_as_it_is():
    bundled = (paths.bundled("config") / "keymap.toml").read_text(encoding="utf-8")
    assert bundled == default_file(), (
        "write it again: python -m app.tui.keymap > config/keymap.toml"
    )


def test_the_bundled_file_changes_nothing():
    keymap = load_keymap(paths.bundled("config") / "keymap.toml")
    defaults = Keymap()
    assert set(keymap.changed) == set(ACTIONS)
    assert all(keymap.keys_of(action_id) == defaults.keys_of(action_id) for action_id in ACTIONS)


def test_without_a_file_the_default_keys_apply():
    assert load_keymap() == Keymap()
    assert Keymap().keys_of("prompt.new_line") == ("ctrl+j", "shift+enter", "alt+enter")
    assert Keymap().keys_of("chat.new") == ()


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ('"ctrl+b"', ("ctrl+b",)),
        ('"f9, ctrl+b"', ("f9", "ctrl+b")),
        ('["Shift+Ctrl+B", "F9"]', ("ctrl+shift+b", "f9")),
        ('"alt+?"', ("alt+question_mark",)),
        ('"ctrl++"', ("ctrl+plus",)),
        ('"alt+pgup"', ("alt+pageup",)),
        ('""', ()),
        ("[]", ()),
    ],
)
def test_keys_may_be_written_in_common_ways(file: Path, value: str, keys: tuple[str, ...]):
    assert keymap_of(file, f"[chat]\nnew = {value}").keys_of("chat.new") == keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[prompt]\nsned = "f9"', "prompt.sned is not an action (nearest: send under [prompt])"),
        ('[promt]\nsend = "f9"', "promt.send is not an action (nearest: send under [prompt])"),
        (
            '[keys]\n"app.models" = "f6"',
            "keys.app.models is not an action (nearest: models under [app])",
        ),
        ('send = "f9"', "send is not a table of keys (nearest: send under [prompt])"),
        ('[prompt]\nsend = "ctlr+j"', "prompt.send: 'ctlr+j' is not a key (nearest: ctrl+j)"),
        ('[prompt]\nsend = "entre"', "prompt.send: 'entre' is not a key (nearest: enter)"),
        ("[prompt]\nsend = 3", "prompt.send must be a key or a list of keys"),
        ('[chat]\nnew = "n"', "chat.new: 'n' could no longer be typed (add ctrl+ or alt+)"),
        ('[chat]\nnew = "space"', "chat.new: 'space' could no longer be typed"),
        ('[chat]\nnew = "ctrl+s"', "chat.new and chat.save both have ctrl+s"),
        ('[chat]\nnew = "enter"', "chat.new and prompt.send both have enter"),
        ('[chat]\nnew = "f9"\n[app]\nquit = "f9"', "both have f9"),
        ('[chat]\nnew = "\\u001b[31m"', "is not a key"),
        ("[chat", "is not valid TOML"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_nearest_name(file: Path, text: str, message: str):
    with pytest.raises(KeymapError) as refusal:
        keymap_of(file, text)
    line = str(refusal.value)
    assert line.startswith(f"{file}: ")
    assert message in line
    assert "\n" not in line
    assert "\x1b" not in line


def test_key_maps_may_use_earlier_names_of_actions(file: Path):
    keymap = keymap_of(file, '[app]\nshelf = "f10"\n[shelf]\nopen = "f9"')
    assert keymap.keys_of("app.documents") == ("f10",)
    assert keymap.keys_of("documents.open") == ("f9",)


def test_two_actions_may_swap_their_keys(file: Path):
    keymap = keymap_of(file, '[chat]\nsave = "ctrl+r"\nregenerate = "ctrl+s"')
    assert keymap.first_key("chat.save") == "ctrl+r"


def test_a_key_map_from_before_keeps_the_keys_of_later_defaults(file: Path):
    keymap = keymap_of(file, '[chat]\nregenerate = "ctrl+r"\nsave = "f9"')
    assert keymap.first_key("chat.regenerate") == "ctrl+r"
    assert keymap.first_key("chat.save") == "F9"
    assert keymap.first_key("prompt.search_history") == ""
    keymap = keymap_of(file, '[conversations]\nrename = "ctrl+r"\n[chat]\nregenerate = ""')
    assert keymap.first_key("prompt.search_history") == "ctrl+r"


def test_keys_are_shown_in_common_notation():
    shown = [
        show_key(key)
        for key in ("enter", "shift+enter", "f1", "ctrl+j", "alt+question_mark", "pageup")
    ]
    assert shown == ["Enter", "shift+Enter", "F1", "ctrl+j", "alt+?", "PgUp"]


async def test_keys_of_prompt_and_chat_can_be_remapped(file: Path):
    text = '[prompt]\nsend = "ctrl+j"\nnew_line = "enter"\n[chat]\ncopy = "ctrl+k"\nsave = ""'
    async with chatting(keymap=keymap_of(file, text)) as driver:
        await driver.shows("ctrl+j sends · Enter new line")
        await driver.pilot.press("a", "enter", "b", "home", "ctrl+k")  # goes before an editing key
        await driver.note("there is no reply to copy")
        await driver.until(lambda: driver.prompt.text == "a\nb")
        assert driver.chat.core.chat_session.conversation.is_empty
        await driver.pilot.press("ctrl+s")
        await driver.pilot.pause()
        assert not any("save" in note for note in driver.notes())
        await driver.pilot.press("ctrl+j")
        await driver.until(lambda: not driver.chat.core.chat_session.conversation.is_empty)


async def test_help_and_palette_show_the_users_keys(file: Path):
    keymap = keymap_of(file, '[chat]\nsave = "f9"\n[app]\nhelp = "f12"')
    async with chatting(keymap=keymap, size=(80, 60)) as driver:
        commands = {
            command.title: command.help for command in driver.app.get_system_commands(driver.chat)
        }
        assert commands["Save the conversation as Markdown"] == "F9   /save [path] [+thinking]"
        await driver.pilot.press("f12")
        await driver.until(lambda: "In the prompt" in driver.screen_text())
        lines = driver.screen_text().splitlines()
        assert any("F9" in line and "Save the conversation" in line for line in lines)
        await driver.pilot.press("f12")
        await driver.until(lambda: driver.app.screen is driver.chat)


async def test_every_screen_shows_the_users_keys(file: Path):
    scopes = ("help", "theme", "performance", "doctor", "threads", "models")
    text = "".join(f'[{scope}]\nleave = "f12"\n' for scope in scopes)
    text += '[chat]\nstop = "f11"\n[prompt]\ncomplete = "f9"\n[app]\ninterrupt = "f10"\nmodels = ""\ntune = ""\n'
    async with chatting(keymap=keymap_of(file, text), model=None, size=(80, 40)) as driver:
        await driver.pilot.press("f10")
        await driver.until(lambda: "F10 again quits" in driver.screen_text())
        await driver.pilot.press("slash", "t", "u")
        await driver.until(lambda: "(F9)" in driver.screen_text())
        await driver.pilot.press("f9")
        for command, said in (
            ("/theme", "F12 cancel"),
            ("/stats", "F12 back · arrows scroll"),
            ("/doctor", "r check again · arrows scroll · F12 back"),
            ("/tune", "No model is loaded. Press /models in the chat"),
        ):
            driver.prompt.show_text(command)
            await driver.pilot.press("enter")
            await driver.until(lambda said=said: said in driver.screen_text(), said)
            await driver.pilot.press("f12")
            await driver.until(lambda: driver.app.screen is driver.chat, "back in the chat")
        assert driver.chat.core.busy_line() == "the engine is busy: F11 stops it"


def test_no_screen_hard_codes_a_key():
    textuals_own = {
        "palette.py": ["Type to search · Enter run · Esc back"],
        "theme_picker.py": ["Enter choose"],
        "list_screen.py": ["ctrl+u"],  # clears what is typed, as in Textual's inputs
        "find_bar.py": ["ctrl+u"],
    }
    found: dict[str, list[str]] = {}
    for source in [
        *Path(screens.__path__[0]).glob("*.py"),
        *Path(widgets.__path__[0]).glob("*.py"),
        Path(app.__file__),
    ]:
        tree = ast.parse(source.read_text(encoding="utf-8"))
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            is_text = (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in texts
            )
            if is_text and re.search(r"\b(F\d+|Esc|Enter|Tab|(ctrl|shift|alt)\+\w+)\b", node.value):
                found.setdefault(source.name, []).append(node.value)
    assert found == textuals_own
