import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from app.program.refusals import Refusal
from app.tui.chat.external_editor import edit_text, find_editor
from tests.app.chat_driver import chatting

CODE = "\n".join(f"x{i} = {i}" for i in range(42))


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a small program that stands for an editor; returns its environment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def make(body: str) -> dict[str, str]:
        program = tmp_path / "my editor.py"
        program.write_text(
            f"import os, sys\npath = sys.argv[-1]\ntext = open(path).read()\n{body}\n",
            encoding="utf-8",
        )
        return {"EDITOR": f"{sys.executable} '{program}' --wait", "PATH": os.environ["PATH"]}

    return make


def leftovers(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "temporary").iterdir())


async def test_what_the_editor_leaves_is_the_text(editor, tmp_path: Path):
    edited = await edit_text("hello", editor("open(path, 'w').write(text + ' world\\x1b[0m\\n')"))
    assert edited == "hello world␛[0m"
    assert leftovers(tmp_path) == []


async def test_the_file_is_for_the_user_alone_and_copies_of_it_go_too(editor, tmp_path: Path):
    body = (
        f"open(path + '~', 'w').write(text)\nopen(r'{tmp_path}/mode', "
        f"'w').write(str(os.stat(path).st_mode))"
    )
    await edit_text("secret", editor(body))
    assert stat.S_IMODE(int((tmp_path / "mode").read_text())) == 0o600
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "notice"),
    [
        (
            "open(path, 'w').write('lost'); sys.exit(1)",
            "ended with code 1: the prompt stays as it was",
        ),
        ("os.kill(os.getpid(), 9)", "ended with signal 9: the prompt stays as it was"),
        ("os.unlink(path)", "No such file"),
        ("os.unlink(path); os.mkdir(path)", "Is a directory"),
    ],
)
async def test_an_editor_that_fails_changes_nothing(editor, tmp_path: Path, body: str, notice: str):
    with pytest.raises(Refusal) as refusal:
        await edit_text("hello", editor(body))
    assert notice in str(refusal.value)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("command", ["/no/such/editor --wait", "'unclosed", "no-such-editor-here"])
async def test_an_editor_that_is_not_there_is_named(command: str):
    with pytest.raises(Refusal) as refusal:
        await edit_text("hello", {"VISUAL": command, "PATH": os.environ["PATH"]})
    assert command.split()[0] in str(refusal.value)
    assert "\n" not in str(refusal.value)


async def test_visual_comes_before_editor_and_common_ones_after_both(tmp_path: Path):
    assert find_editor({"VISUAL": "code --wait", "EDITOR": "vi"}) == ["code", "--wait"]
    assert find_editor({"VISUAL": " ", "EDITOR": "vi"}) == ["vi"]
    (tmp_path / "nano").touch(mode=0o755)
    assert find_editor({"PATH": str(tmp_path)}) == ["nano"]
    (tmp_path / "nano").unlink()
    assert find_editor({"PATH": str(tmp_path)}) == []
    with pytest.raises(Refusal, match=r"set \$EDITOR"):
        await edit_text("x", {"PATH": str(tmp_path)})


async def test_the_prompt_goes_to_the_editor_and_back_with_its_folds(
    editor, monkeypatch: pytest.MonkeyPatch
):
    environ = editor("open(path, 'w').write('please ' + text + ' now\\n')")
    monkeypatch.setenv("VISUAL", environ["EDITOR"])
    async with chatting() as driver:
        monkeypatch.setattr(driver.app, "suspend", contextlib.nullcontext)
        await driver.type("explain ")
        driver.prompt.insert(driver.prompt._fold(CODE))
        await driver.pilot.press("ctrl+g")
        await driver.until(lambda: driver.prompt.text.endswith(" now"))
        assert driver.prompt.text.startswith("please explain [pasted")
        assert driver.prompt.draft.text == f"please explain {CODE} now"


async def test_a_terminal_that_cannot_be_lent_is_said_so():
    async with chatting() as driver:
        await driver.type("hello")
        await driver.pilot.press("ctrl+g")
        await driver.note("cannot be lent")
        assert driver.prompt.text == "hello"
