import json
from pathlib import Path

import pytest

from app.program.small_file import DamagedFileError, JsonFile, NewerFileError


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    JsonFile(path, 1, 1000).write(rates={"x": 1})
    assert JsonFile(path, 1, 1000).read() == {"version": 1, "rates": {"x": 1}}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{", '{"rates": 1}', '{"version": "1"}', '{"version": 3}', "[" * 9000])
def test_what_is_not_sound_is_as_if_it_were_not_there(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    assert JsonFile(tmp_path / "a.json", 2, 10_000).read() == {}


def test_a_file_that_is_too_large_or_too_old_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    JsonFile(path, 1, 1000).write(text="x" * 100)
    assert JsonFile(path, 1, 50).read() == {}
    assert JsonFile(path, 2, 1000).read() == {}


def test_a_newer_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    JsonFile(path, 3, 1000).write(what="newer")
    JsonFile(path, 2, 1000).write(what="older")
    assert json.loads(path.read_text(encoding="utf-8")) == {"version": 3, "what": "newer"}


def test_where_nothing_can_be_kept_nothing_is_raised(tmp_path: Path) -> None:
    JsonFile(None, 1, 1000).write(what="lost")
    assert JsonFile(None, 1, 1000).read() == {}
    (tmp_path / "file").write_text("", encoding="utf-8")
    JsonFile(tmp_path / "file" / "a.json", 1, 1000).write(what="lost")


def test_what_is_asked_for_says_why_it_cannot_be_had(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(FileNotFoundError):
        JsonFile(path, 1, 1000).load()
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DamagedFileError, match="not sound JSON"):
        JsonFile(path, 1, 1000).load()
    path.write_text('{"version": 2}', encoding="utf-8")
    with pytest.raises(NewerFileError):
        JsonFile(path, 1, 1000).save(what="older")
    with pytest.raises(OSError, match="its directory is not writable"):
        JsonFile(path / "b.json", 1, 1000).save(what="lost")
