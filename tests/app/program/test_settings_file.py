"""Changes of a setting in the user's file, which preserve the rest of the file."""

from pathlib import Path

import pytest
import tomli

from app.program import settings_file
from app.program.refusals import Refusal
from app.program.settings import (
    allowed_of,
    built_in_settings,
    choices_of,
    load_settings,
    setting_keys,
    typed_value,
    value_of,
    written,
)
from tests.app.own_settings import own_settings

MINE = """\
# mine
threads = 2   # two are enough

[sampling]
# freely
temperature = 1.0
"""


@pytest.fixture
def file() -> Path:
    return own_settings(MINE)


def change(key: str, value: object) -> None:
    settings_file.changed(load_settings(), key, value)


def test_comments_and_order_are_preserved(file: Path) -> None:
    change("threads", 3)
    assert file.read_text() == MINE.replace("threads = 2", "threads = 3")
    change("sampling.temperature", 0.5)
    assert file.read_text() == MINE.replace("threads = 2", "threads = 3").replace("1.0", "0.5")


def test_new_keys_are_added_to_their_tables_and_removed(file: Path) -> None:
    change("sampling.top_k", 7)
    change("theme", "nord")
    change("model_directories", ["~/a b", "/c"])
    text = file.read_text()
    expected = {"threads": 2, "theme": "nord", "model_directories": ["~/a b", "/c"]}
    assert tomli.loads(text) == {**expected, "sampling": {"temperature": 1.0, "top_k": 7}}
    assert all(comment in text for comment in ("# mine", "# two are enough", "# freely"))
    for key in ("theme", "model_directories", "sampling.top_k", "sampling.min_p"):
        change(key, None)
    assert tomli.loads(file.read_text()) == tomli.loads(MINE)


def test_the_first_change_creates_the_file(tmp_path: Path) -> None:
    change("sampling.seed", 5)
    assert load_settings().sampling.seed == 5


@pytest.mark.parametrize(
    "original", ["threads = \n", "nosuch = 1\n", "threads = -1\n", "sampling = 3\n", "\x00"]
)
def test_an_invalid_file_is_not_changed(file: Path, original: str) -> None:
    file.write_text(original)
    with pytest.raises(Refusal, match=r"settings\.toml"):
        settings_file.changed(built_in_settings(), "theme", "nord")
    assert file.read_text() == original


def test_an_invalid_value_is_refused_with_the_error_of_the_file(file: Path) -> None:
    with pytest.raises(Refusal, match="threads is 900; allowed: a whole number from 0 to 128"):
        change("threads", 900)
    assert file.read_text() == MINE


def test_a_full_disk_leaves_the_file_unchanged(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("app.program.small_file.os.replace", fail)
    with pytest.raises(Refusal, match=r"No space left on device \(nothing was changed\)"):
        change("threads", 3)
    assert file.read_text() == MINE
    assert [path.name for path in file.parent.iterdir()] == ["settings.toml"]


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.toml"
    file.replace(target)
    file.symlink_to(target)
    change("threads", 4)
    assert file.is_symlink()
    assert "threads = 4" in target.read_text()


def test_every_default_is_read_back_from_its_written_form() -> None:
    settings = built_in_settings()
    for key in setting_keys():
        value = value_of(settings, key)
        meant = typed_value(settings, key, written(value))
        assert (tuple(meant) if isinstance(meant, list) else meant) == value
        assert allowed_of(key)
        assert not choices_of(key) or value in choices_of(key)


def test_tool_servers_stay_as_written_in_an_editor(file: Path) -> None:
    file.write_text('[tools.servers.files]\ncommand = ["files"]\n')
    for value in (None, "x"):
        with pytest.raises(Refusal, match=r"tools\.servers can only be changed with an editor"):
            change("tools.servers", value)
    change("tools.use", "on")
    assert load_settings().tools.use == "on"
    assert written(value_of(load_settings(), "tools.servers")) == "files"
    assert load_settings().sources.keys() == {"tools.use", "tools.servers"}
