"""Saved states that were damaged, swapped, or could not be written: cut or refused, never
believed."""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.saved_state import StateWriter, restorable, restore_state, segments, stored_in, writer
from tests.engine.scripted_session import ROPE, ScriptedSession, config_with

pytestmark = pytest.mark.slow


def session_of(*lengths: int, **arguments: Any) -> Any:
    session = ScriptedSession(**arguments)
    for length in lengths:
        session.feed([(7 * i + length) % 300 for i in range(length)])
    return session


def save(session: Any, path: Path) -> None:
    saving = StateWriter(session, path)
    assert saving.flush(60), saving.problem
    saving.close()


TOKENS = [(3 * i + 70) % 300 for i in range(40)] + [(3 * i + 20) % 300 for i in range(20)]
TOKENS += [(3 * i + 90) % 300 for i in range(90)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The same 150 tokens in segments, and another 100 that begin with 70 of them."""
    for tokens in (TOKENS, [*TOKENS[:70], *range(30)]):
        session: Any = ScriptedSession()
        session.feed(tokens)
        save(session, tmp_path / "tree")
    return tmp_path / "tree"


def restored(place: Path, tokens: list[int] = TOKENS) -> Any:
    session: Any = ScriptedSession()
    restore_state(session, place, tokens)
    assert session.tokens == tokens[: session.length]
    assert session.wrong_positions() == []
    return session


def lengths_in(place: Path) -> list[int]:
    return sorted(one.segment.last for one in stored_in(place))


def test_a_flipped_bit_in_a_segment_ends_the_prefix_there(tree: Path) -> None:
    seen = set()
    for one in stored_in(tree):
        whole = one.path.read_bytes()
        head = one.segment.head_bytes
        for at in (*range(0, head, 41), *range(head, len(whole), 9001), len(whole) - 1):
            broken = bytearray(whole)
            broken[at] ^= 1 << at % 8
            one.path.write_bytes(broken)
            found = restored(tree).length
            assert found == one.segment.first or (found, one.segment.last) == (150, 100)
            seen.add((found, one.path.exists()))
            one.path.write_bytes(whole)
            one.path.chmod(0o600)
    assert seen == {(0, False), (64, False), (128, False), (150, True)}


@pytest.mark.parametrize(
    "break_it", ["cut off", "missing", "a link", "a pipe", "a directory", "another segment's"]
)
def test_a_segment_unlike_its_name_ends_the_prefix(tree: Path, break_it: str) -> None:
    (one,) = (found for found in stored_in(tree) if found.segment.last == 128)
    whole = one.path.read_bytes()
    one.path.unlink()
    if break_it == "cut off":
        one.path.write_bytes(whole[:-1])
    elif break_it == "a link":
        (tree / "whole").write_bytes(whole)
        (tree / "whole").chmod(0o600)
        one.path.symlink_to(tree / "whole")
    elif break_it == "a pipe":
        os.mkfifo(one.path, 0o600)
    elif break_it == "a directory":
        one.path.mkdir()
    elif break_it == "another segment's":
        (other,) = (found for found in stored_in(tree) if found.segment.last == 64)
        one.path.write_bytes(other.path.read_bytes())
        one.path.chmod(0o600)
    session = restored(tree)
    # of the other conversation
    assert session.length == (64 if break_it == "another segment's" else 70)
    session.feed(TOKENS[session.length :])
    if break_it != "a directory":
        save(session, tree)
        assert one.path.read_bytes() == whole
        assert restored(tree).length == 150
        assert not one.path.is_symlink()


def test_segments_of_somebody_else_are_not_read(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in stored_in(tree):
        one.path.chmod(0o622)
    assert restored(tree).length == 0
    assert lengths_in(tree) == []
    save(session_of(30), tree.with_name("other"))
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert restored(tree.with_name("other"), session_of(30).tokens).length == 0


def test_no_place_and_strange_names_are_no_error(tree: Path) -> None:
    for name in (
        "x.kv",
        f"{'0' * 32}-0-{'0' * 32}.kv",
        f"{'0' * 32}-9-{'0' * 32}.kv\n",
        "\x1b[2J",
        ".unfinished",
    ):
        (tree / name).write_bytes(b"x")
    os.utime(tree / ".unfinished", (1e9, 1e9))
    assert restored(tree).length == 150
    assert lengths_in(tree) == [64, 100, 128, 150]
    assert not (tree / ".unfinished").exists()
    assert restore_state(session_of(), tree.with_name("none"), TOKENS).tokens == 0
    assert restore_state(session_of(), tree / "x.kv", TOKENS).tokens == 0
    assert restorable(session_of(), tree, []) == 0


def test_two_programs_write_the_same_tree_at_once(tmp_path: Path) -> None:
    sessions: list[Any] = [ScriptedSession(), ScriptedSession()]
    saving = [StateWriter(session, tmp_path / "tree") for session in sessions]
    for at in range(0, 150, 30):
        for session, one in zip(sessions, saving, strict=True):
            session.feed(TOKENS[at : at + 30])
            one.notify()
        if at == 60:  # and a third one drops what it finds
            for one in saving:
                assert one.flush(60), one.problem
            for found in stored_in(tmp_path / "tree")[:1]:
                found.path.unlink()
    for one in saving:
        assert one.flush(60), one.problem
        one.close()
    assert restored(tmp_path / "tree").length in (64, 128, 150)
    assert all(path.suffix == ".kv" for path in (tmp_path / "tree").iterdir())
    session: Any = ScriptedSession()
    session.feed(TOKENS)
    save(session, tmp_path / "tree")
    assert restored(tmp_path / "tree").length == 150


@pytest.mark.parametrize(
    "sessions",
    [
        ({"kv": "f32"}, {"kv": "f16"}),
        ({"kv": "f16"}, {"kv": "q8_0"}),
        ({}, {"config": config_with(replace(ROPE, theta=5000.0), ROPE)}),
        ({}, {"fingerprint": "12" * 32}),
    ],
)
def test_a_session_of_another_kind_finds_nothing(tmp_path: Path, sessions: Any) -> None:
    save(session_of(30, **sessions[0]), tmp_path / "tree")
    other = session_of(**sessions[1])
    assert restore_state(other, tmp_path / "tree", session_of(30).tokens).tokens == 0
    assert len(list((tmp_path / "tree").iterdir())) == 1


class Failing:
    """Makes the n-th of the writer's system calls fail; others' are left alone."""

    CALLS = ("open", "write", "fsync", "replace", "close", "utime", "listdir")

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, number: int, code: int, on_and_on: bool
    ) -> None:
        self.left = number
        self.hit = ""
        self._code = code
        self._on_and_on = on_and_on
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread().name == "state-writer":
                self.left -= 1
                if self.left == 0 or (
                    self._on_and_on and self.left < 0 and name in ("write", "fsync")
                ):
                    self.hit = self.hit or name
                    if name == "close":
                        real(*arguments)  # the descriptor is gone even where closing fails
                    raise OSError(self._code, os.strerror(self._code))
            return real(*arguments, **named)

        return call


def test_a_file_system_without_directory_sync_is_written_to(
    tmp_path: Path, no_directory_syncs: None
) -> None:
    save(session_of(30), tmp_path / "tree")
    assert restored(tmp_path / "tree", session_of(30).tokens).length == 30


@pytest.mark.parametrize(("code", "on_and_on"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_every_call_that_fails_leaves_whole_segments_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, on_and_on: bool
) -> None:
    hits = []
    number = 0
    while True:
        number += 1
        place = tmp_path / str(number)
        session: Any = ScriptedSession()
        session.feed(TOKENS[:70])
        save(session, place)
        with monkeypatch.context() as patch:
            patch.setattr(writer, "RETRY_S", 0.0)
            session.feed(TOKENS[session.length :])
            saving = StateWriter(session, place)
            failing = Failing(patch, number, code, on_and_on)
            is_saved = saving.flush(60)
            problem = saving.problem
        if not failing.hit:
            saving.close()
            break
        hits.append(failing.hit)
        assert is_saved or problem, hits
        assert "\n" not in (problem or "")
        assert restored(place).length >= 70, hits
        assert saving.flush(60), saving.problem  # whatever it was, it is over
        saving.close()
        assert restored(place).length == 150
        assert [path.name for path in place.iterdir() if path.name.startswith(".")] == []
    assert {"write", "replace"} <= set(hits)


def test_a_device_that_writes_less_than_asked_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, memoryview(data)[:1000]))
    save(session_of(130), tmp_path / "tree")
    assert restored(tmp_path / "tree", session_of(130).tokens).length == 130


def test_a_nearly_full_disk_is_left_alone(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = restored(tree)
    session.feed([5] * 50)
    monkeypatch.setattr(writer, "RESERVE_BYTES", 1 << 62)
    saving = StateWriter(session, tree)
    assert not saving.flush(60)
    assert "nearly full" in (saving.problem or "")
    assert restored(tree).length == 150
    monkeypatch.setattr(writer, "RESERVE_BYTES", 0)
    assert saving.flush(60)
    assert saving.problem is None
    saving.close()


def test_a_quota_stops_saving_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "tree"
    session = session_of(64)
    quota_bytes = segments.saved_bytes(session.cache, 100)
    saving = StateWriter(session, place, quota_bytes)
    assert saving.flush(60)
    session.feed([7] * 64)
    assert not saving.flush(60)
    assert "allowed" in (saving.problem or "")
    assert lengths_in(place) == [64]
    saving.quota_bytes = None
    assert saving.flush(60)
    saving.close()
    assert lengths_in(place) == [64, 128]


def test_a_session_names_each_segment_before_it_is_there(tmp_path: Path) -> None:
    named: list[str] = []

    def note(name: str) -> None:
        named.append(name)
        if len(named) == 2:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    saving = StateWriter(session_of(150), tmp_path / "tree", on_segment=note)
    assert not saving.flush(60)
    assert lengths_in(tmp_path / "tree") == [64]
    assert saving.flush(60)
    saving.close()
    assert {path.name for path in (tmp_path / "tree").iterdir()} == set(named)


def test_a_writer_left_on_a_hung_device_writes_no_later_tokens(tmp_path: Path) -> None:
    place = tmp_path / "tree"
    session = session_of(40)
    copy_out = session.cache.copy_out
    copying = threading.Event()
    goes_on = threading.Event()

    def copy_out_late(*arguments: Any) -> int:
        copying.set()
        assert goes_on.wait(60)
        return int(copy_out(*arguments))

    session.cache.copy_out = copy_out_late
    saving = StateWriter(session, place)
    assert not saving.flush(0.01)
    assert copying.wait(60)
    saving.close(0.01)
    session.truncate(0)
    session.feed([(11 * i) % 300 for i in range(60)])
    goes_on.set()
    saving._thread.join(60)
    saving.close()
    assert list(place.iterdir()) == []


def test_a_writer_sleeps_while_tokens_are_only_tried(tmp_path: Path) -> None:
    session = session_of(40)
    saving = StateWriter(session, tmp_path / "kv.state")
    assert saving.flush(60)
    n_attempts = 0
    many = threading.Event()
    attempt = saving._attempt

    def counted(*arguments: Any) -> None:
        nonlocal n_attempts
        n_attempts += 1
        if n_attempts > 5:
            many.set()
        attempt(*arguments)

    saving._attempt = counted  # type: ignore[method-assign]
    session.feed([1, 2])
    with session.cached.temporary_tokens():
        session.feed(range(50))
        saving.notify()
        assert not many.wait(0.5)
    saving.close()
