"""Links, devices and other hostile objects instead of a small file.

Each is reported in one line, read within limits, and never blocks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from app.program import notices, paths, personas, state
from app.program.refusals import Refusal
from app.program.settings import SettingsError, load_settings
from app.program.small_file import JsonFile, read_text
from app.server.command import _api_key
from app.tui.chat.draft import Draft
from app.tui.chat.history import read_history
from app.tui.chat.unsent_drafts import take_stored_drafts
from app.tui.keymap import KeymapError, load_keymap
from engine.machine.files import read_regular
from engine.plan import lookahead


def _folder(path: Path) -> None:
    path.mkdir()


def _socket(path: Path) -> None:
    directory_fd = os.open(path.parent, os.O_RDONLY)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(f"/proc/self/fd/{directory_fd}/{path.name}")  # socket paths must be short
    finally:
        server.close()
        os.close(directory_fd)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = [_folder, os.mkfifo, _socket, _loop, _dangling, _device]
NAMES = ["folder", "pipe", "socket", "loop", "dangling", "device"]
each_kind = pytest.mark.parametrize("make", KINDS, ids=NAMES)
Make = Callable[[Path], None]


def is_one_line(text: str) -> bool:
    return text.isprintable() and 0 < len(text) <= 600


@each_kind
def test_a_file_of_the_user_is_refused_in_one_line(tmp_path: Path, make: Make) -> None:
    make(tmp_path / "file.toml")
    with pytest.raises(Refusal) as refusal:
        read_text(tmp_path / "file.toml", "settings file")
    assert "file.toml: " in str(refusal.value)
    assert is_one_line(str(refusal.value))


@each_kind
def test_unusable_settings_and_key_map_files_are_named(make: Make) -> None:
    for path, load, error in (
        (paths.config_file(), load_settings, SettingsError),
        (paths.keymap_file(), load_keymap, KeymapError),
    ):
        assert path is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
        with pytest.raises(error) as refusal:
            load()
        assert path.name in str(refusal.value)
        assert is_one_line(str(refusal.value))


def test_a_file_instead_of_the_settings_folder_is_named() -> None:
    path = paths.config_file()
    assert path is not None
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.write_text("", encoding="utf-8")
    with pytest.raises(SettingsError, match="is a file, but should be a folder"):
        load_settings()
    with pytest.raises(KeymapError, match="is a file, but should be a folder"):
        load_keymap()


@each_kind
def test_a_file_of_the_program_is_ignored_and_named_once(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "speeds.json"
    make(path)
    for _ in range(2):
        assert JsonFile(path, 1, 1000).read() == {}
    (line,) = notices.take_all()
    assert line.startswith(f"{path}: ")
    assert line.endswith("it is ignored")


@each_kind
def test_history_and_drafts_are_ignored_and_named(tmp_path: Path, make: Make) -> None:
    unsent = paths.unsent_file()
    assert unsent is not None
    unsent.parent.mkdir(parents=True)
    history = tmp_path / "prompt-history.jsonl"

    def take() -> Sequence[Draft]:
        return take_stored_drafts().drafts

    for path, read in ((history, partial(read_history, history)), (unsent, take)):
        make(path)
        assert read() == []
        (line,) = notices.take_all()
        assert path.name in line
        assert is_one_line(line)


@each_kind
def test_the_program_state_is_ignored_with_a_line(make: Make) -> None:
    path = paths.state_file()
    assert path is not None
    path.parent.mkdir(parents=True)
    make(path)
    learned, line = state.load_state()
    assert learned == state.ProgramState()
    assert (line or "").startswith(f"{path}: ") == (make is not _dangling or line is not None)


@each_kind
def test_an_api_key_file_does_not_block(tmp_path: Path, make: Make) -> None:
    make(tmp_path / "key")
    with pytest.raises(Refusal, match="key: "):
        _api_key(str(tmp_path / "key"))


@each_kind
def test_saved_tuning_is_ignored(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "lookahead.json")
    monkeypatch.setattr(lookahead, "_path", lambda: tmp_path / "lookahead.json")
    assert lookahead._read_file() == {}


def test_a_file_instead_of_the_persona_folder_is_named() -> None:
    path = paths.personas_dir()
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("", encoding="utf-8")
    assert personas.persona_names() == ["plain", "reviewer", "translator"]  # the bundled ones
    (line,) = notices.take_all()
    assert "personas are not read" in line


def test_links_to_files_of_the_user_are_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("words", encoding="utf-8")
    (tmp_path / "link").symlink_to("elsewhere")
    assert read_text(tmp_path / "link", "system prompt") == "words"
    with pytest.raises(OSError, match="is a link"):
        read_regular(tmp_path / "link", 100)


def test_a_byte_order_mark_is_removed(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_bytes(b"\xef\xbb\xbf[sampling]\r\ntemperature = 0.5\r\n")
    assert load_settings(tmp_path / "settings.toml").sampling.temperature == 0.5


def test_a_cache_of_an_older_version_is_replaced_silently(tmp_path: Path) -> None:
    JsonFile(tmp_path / "models.json", 1, 1000).write(what="older")
    assert JsonFile(tmp_path / "models.json", 2, 1000).read() == {}
    assert notices.take_all() == []
