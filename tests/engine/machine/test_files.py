"""Directories of compiled code, and directories that other users can change."""

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
    directory = tmp_path / "shared"
    directory.mkdir()
    monkeypatch.setenv("JALOPY_CACHE_DIR", str(directory))
    return directory


def user_directory(shared: Path) -> Path:
    return shared / f"jalopy-{OWN}"


def kernels(shared: Path) -> Path:
    return user_directory(shared) / f"kernels-{code.VERSION}"


@pytest.mark.parametrize("permissions", [0o755, 0o1777, 0o2755])
def test_the_cache_is_created_below_the_named_directory(shared: Path, permissions: int) -> None:
    shared.chmod(permissions)
    assert code._cache_directory() == kernels(shared)
    assert mode(shared) == permissions
    assert {mode(user_directory(shared)) & 0o777, mode(kernels(shared)) & 0o777} == {0o700}


def test_missing_directories_are_created_private(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_cache_writable_by_others_is_neither_used_nor_changed(
    shared: Path, harm: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_is_own_group", lambda group_id: False)
    directory = kernels(shared)
    files.make_private(directory)
    harm(directory)
    status = directory.lstat()
    assert code._cache_directory() is None
    assert directory.lstat() == status


@pytest.mark.parametrize(
    ("permissions", "is_used"), [(0o777, False), (0o770, False), (0o1777, True), (0o755, True)]
)
@pytest.mark.parametrize("level", ["named", "own"])
def test_parents_in_which_others_can_rename_are_not_used(
    shared: Path, level: str, permissions: int, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_is_own_group", lambda group_id: False)
    files.make_private(kernels(shared))
    above = shared if level == "named" else user_directory(shared)
    above.chmod(permissions)
    assert (code._cache_directory() is not None) == is_used
    assert mode(above) == permissions


@pytest.mark.parametrize("level", ["kernels", "own", "named"])
def test_a_directory_of_another_user_is_not_used(
    shared: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.make_private(kernels(shared))
    foreign = {"kernels": kernels(shared), "own": user_directory(shared), "named": shared}[level]
    true_stat = Path.stat
    true_lstat = Path.lstat

    def with_owner(status: os.stat_result, path: Path) -> os.stat_result:
        return os.stat_result([*status[:4], OTHER, *status[5:]]) if path == foreign else status

    monkeypatch.setattr(
        Path, "stat", lambda path, **options: with_owner(true_stat(path, **options), path)
    )
    monkeypatch.setattr(Path, "lstat", lambda path: with_owner(true_lstat(path), path))
    assert code._cache_directory() is None


@pytest.mark.parametrize(
    ("name", "members", "is_own"),
    [("me", [], True), ("me", ["me"], True), ("me", ["other"], False), ("users", [], False)],
)
def test_a_private_group_of_the_user_is_recognised(
    name: str, members: list[str], is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))
    assert files._is_own_group(7) == is_own
