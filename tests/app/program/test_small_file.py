import json
import os
from pathlib import Path

import pytest

from app.program import paths
from app.program.small_file import DamagedFileError, JsonFile, NewerFileError


def test_written_values_are_read_from_private_files_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    JsonFile(path, 1, 1000).write(rates={"x": 1})
    assert JsonFile(path, 1, 1000).read() == {"version": 1, "rates": {"x": 1}}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_invalid_file_is_treated_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in (
        b"", b"[]", b"{", b"null", b'{"rates": 1}', b'{"version": "1"}', b'{"version": true}',
        b'{"version": 3}',
        b"\xff\xfe", b"[" * 9000, b'{"version": 1}', b" " * 10_000 + b'{"version": 2}',
    ):  # fmt: skip
        path.write_bytes(content)
        assert JsonFile(path, 2, 10_000).read() == {}


def test_a_link_a_pipe_and_a_folder_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    good = tmp_path / "elsewhere.json"
    JsonFile(good, 1, 1000).write(what="kept")
    path.symlink_to(good)
    assert JsonFile(path, 1, 1000).read() == {}
    path.unlink()
    os.mkfifo(path)
    assert JsonFile(path, 1, 1000).read() == {}
    path.unlink()
    path.mkdir()
    JsonFile(path, 1, 1000).write(what="lost")
    assert JsonFile(path, 1, 1000).read() == {}


def test_a_newer_file_stays_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    JsonFile(path, 3, 1000).write(what="newer")
    JsonFile(path, 2, 1000).write(what="older")
    assert json.loads(path.read_text(encoding="utf-8")) == {"version": 3, "what": "newer"}


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_failed_write_keeps_only_the_old_file(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    json_file = JsonFile(tmp_path / "a.json", 1, 1000)
    json_file.save(what="old")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(failing, fail)
        with pytest.raises(OSError, match="No space left on device"):
            json_file.save(what="new")
    assert json_file.load()["what"] == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_system_without_directory_sync_is_written_to(
    tmp_path: Path, no_directory_syncs: None
) -> None:
    JsonFile(tmp_path / "a.json", 1, 1000).save(what="new")
    assert JsonFile(tmp_path / "a.json", 1, 1000).load()["what"] == "new"


def test_failures_of_optional_writes_raise_nothing(tmp_path: Path) -> None:
    JsonFile(None, 1, 1000).write(what="lost")
    assert JsonFile(None, 1, 1000).read() == {}
    (tmp_path / "file").write_text("", encoding="utf-8")
    JsonFile(tmp_path / "file" / "a.json", 1, 1000).write(what="lost")
    assert paths.private_directory(tmp_path / "file") is None


def test_a_requested_save_reports_why_it_failed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(FileNotFoundError):
        JsonFile(path, 1, 1000).load()
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DamagedFileError, match="not valid JSON"):
        JsonFile(path, 1, 1000).load()
    path.write_text('{"version": 2}', encoding="utf-8")
    with pytest.raises(NewerFileError):
        JsonFile(path, 1, 1000).save(what="older")
    with pytest.raises(OSError, match="its directory is not writable"):
        JsonFile(path / "b.json", 1, 1000).save(what="lost")
