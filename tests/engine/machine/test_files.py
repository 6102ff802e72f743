"""Directories of code that is run, next to directories that other users can change."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.machine import code, files

OWN = os.geteuid()
OTHER = 54321


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory for JALOPY_CACHE_DIR; its parents belong to root or to the user."""
    place = tmp_path / "shared"
    place.mkdir()
    monkeypatch.setenv("JALOPY_CACHE_DIR", str(place))
    return place


def own(shared: Path) -> Path:
    return shared / f"jalopy-{OWN}"


def kernels(shared: Path) -> Path:
    return own(shared) / f"kernels-{code.VERSION}"


@pytest.mark.parametrize("given", [0o755, 0o1777, 0o2755])
def test_the_cache_goes_below_a_named_directory_whose_mode_stays(shared: Path, given: int) -> None:
    shared.chmod(given)
    assert code._cache_directory() == kernels(shared)
    assert mode(shared) == given
    assert {mode(own(shared)) & 0o777, mode(kernels(shared)) & 0o777} == {0o700}


def test_what_is_missing_is_created_closed(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALOPY_CACHE_DIR", str(shared / "a" / "b"))
    assert code._cache_directory() is not None
    assert {mode(path) for path in (shared / "a").rglob("*")} == {0o700}
    assert mode(shared / "a") == 0o700


def of_all(path: Path) -> None:
    path.chmod(0o777)


def of_a_group(path: Path) -> None:
    path.chmod(0o770)


def of_a_group_though_sticky(path: Path) -> None:
    path.chmod(0o1770)


def a_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def a_file(path: Path) -> None:
    path.rmdir()
    path.touch()


@pytest.mark.parametrize("harm", [of_all, of_a_group, of_a_group_though_sticky, a_link, a_file])
def test_a_cache_that_others_could_write_is_not_used_or_changed(
    shared: Path, harm: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_is_own_group", lambda group_id: False)
    place = kernels(shared)
    files.make_private(place)
    harm(place)
    before = place.lstat()
    assert code._cache_directory() is None
    assert place.lstat() == before


@pytest.mark.parametrize(
    ("given", "is_used"), [(0o777, False), (0o770, False), (0o1777, True), (0o755, True)]
)
@pytest.mark.parametrize("level", ["named", "own"])
def test_a_directory_above_counts_where_others_can_rename_in_it(
    shared: Path, level: str, given: int, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_is_own_group", lambda group_id: False)
    files.make_private(kernels(shared))
    above = shared if level == "named" else own(shared)
    above.chmod(given)
    assert (code._cache_directory() is not None) == is_used
    assert mode(above) == given


@pytest.mark.parametrize("part", ["kernels", "own", "named"])
def test_a_directory_of_another_user_is_not_used(
    shared: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.make_private(kernels(shared))
    theirs = {"kernels": kernels(shared), "own": own(shared), "named": shared}[part]
    true_stat = Path.stat
    true_lstat = Path.lstat

    def changed(found: os.stat_result, path: Path) -> os.stat_result:
        return os.stat_result([*found[:4], OTHER, *found[5:]]) if path == theirs else found

    monkeypatch.setattr(
        Path, "stat", lambda path, **options: changed(true_stat(path, **options), path)
    )
    monkeypatch.setattr(Path, "lstat", lambda path: changed(true_lstat(path), path))
    assert code._cache_directory() is None


@pytest.mark.parametrize(
    ("name", "members", "is_own"),
    [("me", [], True), ("me", ["me"], True), ("me", ["other"], False), ("users", [], False)],
)
def test_a_group_of_the_users_own_name_is_no_one_elses(
    name: str, members: list[str], is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))
    assert files._is_own_group(7) == is_own
