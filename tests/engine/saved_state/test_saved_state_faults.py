"""Damaged, swapped and unwritable saved states are cut or refused, never trusted."""

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
    """Directory with segments of ``TOKENS``, and of 100 tokens that share the first 70."""
    for tokens in (TOKENS, [*TOKENS[:70], *range(30)]):
        session: Any = ScriptedSession()
        session.feed(tokens)
        save(session, tmp_path / "tree")
    return tmp_path / "tree"


def restored(directory: Path, tokens: list[int] = TOKENS) -> Any:
    session: Any = ScriptedSession()
    restore_state(session, directory, tokens)
    assert session.tokens == tokens[: session.length]
    assert session.wrong_positions() == []
    return session


def lengths_in(directory: Path) -> list[int]:
    return sorted(stored.segment.last for stored in stored_in(directory))


def test_a_flipped_bit_in_a_segment_ends_the_prefix_there(tree: Path) -> None:
    seen = set()
    for stored in stored_in(tree):
        sound = stored.path.read_bytes()
        head = stored.segment.head_bytes
        for offset in (*range(0, head, 41), *range(head, len(sound), 9001), len(sound) - 1):
            broken = bytearray(sound)
            broken[offset] ^= 1 << offset % 8
            stored.path.write_bytes(broken)
            length = restored(tree).length
            assert length == stored.segment.first or (length, stored.segment.last) == (150, 100)
            seen.add((length, stored.path.exists()))
            stored.path.write_bytes(sound)
            stored.path.chmod(0o600)
    assert seen == {(0, False), (64, False), (128, False), (150, True)}


@pytest.mark.parametrize(
    "damage", ["cut off", "missing", "a link", "a pipe", "a directory", "another segment's"]
)
def test_a_segment_that_does_not_match_its_name_ends_the_prefix(tree: Path, damage: str) -> None:
    (broken,) = (stored for stored in stored_in(tree) if stored.segment.last == 128)
    sound = broken.path.read_bytes()
    broken.path.unlink()
    if damage == "cut off":
        broken.path.write_bytes(sound[:-1])
    elif damage == "a link":
        (tree / "whole").write_bytes(sound)
        (tree / "whole").chmod(0o600)
        broken.path.symlink_to(tree / "whole")
    elif damage == "a pipe":
        os.mkfifo(broken.path, 0o600)
    elif damage == "a directory":
        broken.path.mkdir()
    elif damage == "another segment's":
        (first,) = (stored for stored in stored_in(tree) if stored.segment.last == 64)
        broken.path.write_bytes(first.path.read_bytes())
        broken.path.chmod(0o600)
    session = restored(tree)
    # 70 tokens come from the other conversation.
    assert session.length == (64 if damage == "another segment's" else 70)
    session.feed(TOKENS[session.length :])
    if damage != "a directory":
        save(session, tree)
        assert broken.path.read_bytes() == sound
        assert restored(tree).length == 150
        assert not broken.path.is_symlink()


def test_segments_of_another_user_are_not_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stored in stored_in(tree):
        stored.path.chmod(0o622)
    assert restored(tree).length == 0
    assert lengths_in(tree) == []
    save(session_of(30), tree.with_name("other"))
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert restored(tree.with_name("other"), session_of(30).tokens).length == 0


def test_a_missing_directory_and_odd_names_are_no_error(tree: Path) -> None:
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


def test_two_programs_can_write_the_same_tree_at_once(tmp_path: Path) -> None:
    sessions: list[Any] = [ScriptedSession(), ScriptedSession()]
    state_writers = [StateWriter(session, tmp_path / "tree") for session in sessions]
    for start in range(0, 150, 30):
        for session, state_writer in zip(sessions, state_writers, strict=True):
            session.feed(TOKENS[start : start + 30])
            state_writer.notify()
        if start == 60:  # a third program deletes a segment
            for state_writer in state_writers:
                assert state_writer.flush(60), state_writer.problem
            for stored in stored_in(tmp_path / "tree")[:1]:
                stored.path.unlink()
    for state_writer in state_writers:
        assert state_writer.flush(60), state_writer.problem
        state_writer.close()
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
def test_a_session_with_other_settings_restores_nothing(tmp_path: Path, sessions: Any) -> None:
    save(session_of(30, **sessions[0]), tmp_path / "tree")
    other_session = session_of(**sessions[1])
    assert restore_state(other_session, tmp_path / "tree", session_of(30).tokens).tokens == 0
    assert len(list((tmp_path / "tree").iterdir())) == 1


class Failing:
    """Failure of the n-th system call of the writer thread; other threads are not affected."""

    CALLS = ("open", "write", "fsync", "replace", "close", "utime", "listdir")

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, number: int, code: int, is_lasting: bool
    ) -> None:
        self.left = number
        self.hit = ""
        self._code = code
        self._is_lasting = is_lasting
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if threading.current_thread().name == "state-writer":
                self.left -= 1
                if self.left == 0 or (
                    self._is_lasting and self.left < 0 and name in ("write", "fsync")
                ):
                    self.hit = self.hit or name
                    if name == "close":
                        real(*arguments)  # the descriptor is gone even where closing fails
                    raise OSError(self._code, os.strerror(self._code))
            return real(*arguments, **keywords)

        return call


def test_states_are_saved_without_directory_sync(tmp_path: Path, no_directory_syncs: None) -> None:
    save(session_of(30), tmp_path / "tree")
    assert restored(tmp_path / "tree", session_of(30).tokens).length == 30


@pytest.mark.parametrize(("code", "is_lasting"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_failed_call_leaves_complete_segments_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_lasting: bool
) -> None:
    hits = []
    number = 0
    while True:
        number += 1
        directory = tmp_path / str(number)
        session: Any = ScriptedSession()
        session.feed(TOKENS[:70])
        save(session, directory)
        with monkeypatch.context() as patch:
            patch.setattr(writer, "RETRY_S", 0.0)
            session.feed(TOKENS[session.length :])
            saving = StateWriter(session, directory)
            failing = Failing(patch, number, code, is_lasting)
            is_saved = saving.flush(60)
            problem = saving.problem
        if not failing.hit:
            saving.close()
            break
        hits.append(failing.hit)
        assert is_saved or problem, hits
        assert "\n" not in (problem or "")
        assert restored(directory).length >= 70, hits
        assert saving.flush(60), saving.problem  # the calls work again
        saving.close()
        assert restored(directory).length == 150
        assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []
    assert {"write", "replace"} <= set(hits)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, memoryview(data)[:1000]))
    save(session_of(130), tmp_path / "tree")
    assert restored(tmp_path / "tree", session_of(130).tokens).length == 130


def test_nothing_is_written_to_a_nearly_full_disk(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_saving_stops_at_the_quota_and_resumes_with_a_larger_one(tmp_path: Path) -> None:
    directory = tmp_path / "tree"
    session = session_of(64)
    quota_bytes = segments.saved_bytes(session.cache, 100)
    saving = StateWriter(session, directory, quota_bytes)
    assert saving.flush(60)
    session.feed([7] * 64)
    assert not saving.flush(60)
    assert "allowed" in (saving.problem or "")
    assert lengths_in(directory) == [64]
    saving.quota_bytes = None
    assert saving.flush(60)
    saving.close()
    assert lengths_in(directory) == [64, 128]


def test_each_segment_is_reported_before_it_is_written(tmp_path: Path) -> None:
    names: list[str] = []

    def note(name: str) -> None:
        names.append(name)
        if len(names) == 2:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    saving = StateWriter(session_of(150), tmp_path / "tree", on_segment=note)
    assert not saving.flush(60)
    assert lengths_in(tmp_path / "tree") == [64]
    assert saving.flush(60)
    saving.close()
    assert {path.name for path in (tmp_path / "tree").iterdir()} == set(names)


def test_a_writer_closed_on_a_hung_device_saves_no_later_tokens(tmp_path: Path) -> None:
    directory = tmp_path / "tree"
    session = session_of(40)
    copy_out = session.cache.copy_out
    copying = threading.Event()
    can_continue = threading.Event()

    def copy_out_late(*arguments: Any) -> int:
        copying.set()
        assert can_continue.wait(60)
        return int(copy_out(*arguments))

    session.cache.copy_out = copy_out_late
    saving = StateWriter(session, directory)
    assert not saving.flush(0.01)
    assert copying.wait(60)
    saving.close(0.01)
    session.truncate(0)
    session.feed([(11 * i) % 300 for i in range(60)])
    can_continue.set()
    saving._thread.join(60)
    saving.close()
    assert list(directory.iterdir()) == []


@pytest.mark.smoke
def test_a_writer_sleeps_while_tokens_are_temporary(tmp_path: Path) -> None:
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
