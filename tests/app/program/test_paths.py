import stat
from pathlib import Path

import pytest

from app.conversations import database, locks, older_files, upkeep
from app.conversations.drafts import save_drafts
from app.conversations.store import Store
from app.program import clipboard, manual, paths, state
from tests.app.conversations.talk import saved_talk


def test_platform_variables_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    assert paths.state_file() == tmp_path / "s" / "jalopy" / "state.json"
    assert paths.config_file() == tmp_path / "c" / "jalopy" / "settings.toml"


def test_without_a_home_directory_there_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert paths.state_dir() is None
    assert paths.config_file() is None
    assert paths.private_directory(paths.state_dir()) is None


def test_getting_a_path_creates_nothing(tmp_path: Path) -> None:
    directory = paths.state_dir()
    assert directory is not None
    assert not directory.exists()


def test_a_private_directory_is_created_for_the_owner_only(tmp_path: Path) -> None:
    directory = paths.private_directory(tmp_path / "a" / "b")
    assert directory is not None
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    assert paths.private_directory(directory) == directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_new_base_directories_are_private_and_old_ones_unchanged(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    directory = paths.private_directory(tmp_path / "home" / ".local" / "state" / "jalopy")
    assert directory is not None
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (directory, *list(directory.parents)[:3])
    ]
    assert modes == [0o700, 0o700, 0o700, 0o777]


def test_the_target_of_a_link_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    (tmp_path / "jalopy").symlink_to("shared")
    assert paths.private_directory(tmp_path / "jalopy") == tmp_path / "jalopy"
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


def test_a_file_with_the_name_of_a_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert paths.private_directory(tmp_path / "file") is None
    assert paths.private_directory(tmp_path / "file" / "below") is None


def test_a_foreign_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 123456)
    assert paths.private_directory(tmp_path) is None


def test_the_bundled_settings_are_found() -> None:
    assert (paths.bundled("config") / "default.toml").is_file()


def test_the_manual_lists_every_file() -> None:
    listed = {(file.base, file.name.rstrip("/")) for file in paths.STORED_FILES}
    names = {Path(name).name for _, name in listed}
    database_names = (database.NAME, *database.BACKUPS, database.MARK_NAME, database.ONLY_NAME)
    old_names = (older_files.REMOVED_NAME, older_files.LONG_NAME)
    assert names >= {*database_names, *old_names, locks.LOCK_NAME, upkeep.REPAIR_NOTICE_NAME}
    assert names >= {paths.LOG_NAME, clipboard.FILE_NAME}
    for name, function in vars(paths).items():
        if name.endswith(("_file", "_dir")) and name not in ("state_dir", "data_dir"):
            path = function()
            assert path is not None
            assert any(
                path == (paths.base_directory(base) or Path()) / listed_name
                or listed_name.startswith(f"{path.name}/")
                for base, listed_name in listed
            ), name


def test_the_page_on_files_shows_the_paths_of_this_machine() -> None:
    text = manual.page("files")
    assert "{files}" not in text
    assert str(paths.state_dir()) in text
    assert all(file.name in text and file.purpose in text for file in paths.STORED_FILES)
    table = [line for line in paths.file_table().splitlines() if line.startswith("  ")]
    assert len(table) == len(paths.STORED_FILES)
    assert all(len(line) <= 100 for line in table)


def test_a_chat_writes_only_listed_files() -> None:
    saved_talk(Store().root or Path(), 1)
    save_drafts(Store().root, ["draft"])
    Store().check_and_copy(0.0)
    state.remember_theme("jalopy-light")
    root = paths.state_dir()
    assert root is not None
    listed = {file.name for file in paths.STORED_FILES if file.base == "state"}
    written = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert {name.removesuffix("-wal").removesuffix("-shm") for name in written} <= listed
