"""State files that were damaged, swapped, or could not be written: refused or cut at a sound record, never believed."""

import errno
import hashlib
import os
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.saved_state import (
    StateRefusedError,
    StateWriter,
    appending,
    layout,
    read_summary,
    record,
    restore_state,
    writer,
)
from engine.saved_state.layout import HEADER_BYTES, Header
from engine.saved_state.state_file import opened, read_chain
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


def note_and_wait(saving: StateWriter) -> None:
    """Wait until the thread has done what a note asks for, or has failed."""
    saving.note()
    with saving._changed:
        assert saving._changed.wait_for(lambda: saving._noted_s is None, 60)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """150 tokens in records of different length, one of them dead and one half dead."""
    path = tmp_path / "kv.state"
    session = session_of(70)
    saving = StateWriter(session, path)
    for cut, n in ((70, 0), (70, 13), (40, 20), (60, 90)):
        session.truncate(cut)
        session.feed([(3 * i + n) % 300 for i in range(n)])
        assert saving.flush(60), saving.problem
    saving.close()
    return path


def restored(path: Path) -> Any:
    session: Any = ScriptedSession()
    restore_state(session, path)
    assert session.wrong_positions() == []
    return session


def restored_or_refused(path: Path) -> int:
    """Tokens that came back, all of them with their own keys and values; 0 where the file was refused."""
    session: Any = ScriptedSession()
    said = "kv.state: "
    try:
        restore_state(session, path)
    except StateRefusedError as error:
        said = str(error)
    assert said.isprintable()
    assert said.startswith("kv.state: ")
    assert len(said) < 200
    assert said == "kv.state: " or session.length == 0
    assert session.wrong_positions() == []
    return int(session.length)


def places_to_break(path: Path) -> Iterator[tuple[int, str]]:
    """Every byte of the header and of the records' heads, and some of every payload."""
    with opened(path) as fd:
        chain = read_chain(fd, path.name, None)
    yield from ((at, "header") for at in range(HEADER_BYTES))
    for found in chain.records:
        yield from ((at, "head") for at in range(found.start, found.payload_at, 3))
        what = "payload" if found in chain.live() else "dead"
        yield from ((at, what) for at in (*range(found.payload_at, found.end, 1009), found.end - 1))


def test_a_flipped_bit_anywhere_is_noticed(state: Path) -> None:
    whole, seen = state.read_bytes(), set()
    for at, what in places_to_break(state):
        broken = bytearray(whole)
        broken[at] ^= 1 << at % 8
        state.write_bytes(broken)
        n = restored_or_refused(state)
        seen.add(what)
        assert n == 150 if what == "dead" else n < 150, (at, what)
        assert n == 0 or what != "header"
    assert seen == {"header", "head", "payload", "dead"}


def test_a_file_cut_off_anywhere_gives_what_was_whole(state: Path) -> None:
    whole = state.read_bytes()
    with opened(state) as fd:
        ends = [HEADER_BYTES, *(found.end for found in read_chain(fd, state.name, None).records)]
    lengths = {n for end in ends for n in (end - 1, end, end + 1, end + 70)} | set(range(0, len(whole), 4001))
    for length in sorted(lengths):
        state.write_bytes(whole[:length])
        n = restored_or_refused(state)
        assert (n == 150) == (length >= len(whole)), length
        assert n > 0 or length < ends[1]


def test_an_empty_file_is_no_state_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "kv.state").touch()
    assert restore_state(session_of(), tmp_path / "kv.state").tokens == 0
    with pytest.raises(FileNotFoundError):
        restore_state(session_of(), tmp_path / "missing")


def test_bytes_behind_the_last_record_do_no_harm_and_are_gone_with_the_next(state: Path) -> None:
    with state.open("ab") as file:
        file.write(b"KVrc" + os.urandom(5000))
    session = restored(state)
    assert session.length == 150
    session.feed([5, 6, 7])
    save(session, state)
    assert restored(state).length == 153
    with opened(state) as fd:
        assert read_chain(fd, state.name, None).end == state.stat().st_size


def test_a_damaged_record_is_written_over_by_who_goes_on(state: Path) -> None:
    broken = bytearray(state.read_bytes())
    broken[-1] ^= 1
    state.write_bytes(broken)
    session = ScriptedSession()
    done = restore_state(session, state)  # type: ignore[arg-type]
    assert 0 < done.tokens < 150
    assert done.lost == 150 - done.tokens
    session.feed([9] * 40)
    save(session, state)
    assert restored(state).tokens == session.tokens


def forged(header: Header, *heads: tuple[int, int, int, list[int]]) -> bytes:
    """A file with records whose fields say (first, count, payload bytes, token ids), chained and checksummed."""
    raw = header.to_bytes()
    digest = raw[-32:]
    for first, count, n_payload, ids in heads:
        fields = struct.pack("<4sIQQI", b"KVrc", count, first, n_payload, 0)
        packed = struct.pack(f"<{len(ids)}i", *ids)
        digest = hashlib.blake2b(digest + fields + packed, digest_size=16).digest()
        raw += (fields + digest).ljust(64, b"\0") + packed.ljust(-len(packed) % 64 + len(packed), b"\0")
    return raw


@pytest.mark.parametrize(
    "head",
    [
        (0, 2**32 - 1, 1024, [1]),
        (0, 1, 2**63, [1]),
        (0, 1, 2**64 - 1, [1]),
        (0, 0, 0, []),
        (2**63, 1, 4096, [1]),
        (8, 1, 4096, [1]),
        (3, 1, 4096, [1]),
        (0, 1, 0, [1]),
        (0, 1, 4096, [-1]),
        (0, 1, 4096, [300]),
        (0, 65, 4096 * 9, [1] * 65),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_anything_is_allocated(tmp_path: Path, head: Any) -> None:
    path = tmp_path / "kv.state"
    session = session_of()
    path.write_bytes(forged(Header.of(session, bytes(16)), head) + bytes(4096 * 9))
    path.chmod(0o600)
    tracemalloc.start()
    with pytest.raises(StateRefusedError, match="damaged"):
        restore_state(session, path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert session.length == 0
    assert peak_bytes < 1 << 20
    assert read_summary(path).n_tokens <= 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"fingerprint": "cd" * 32}, "another model or other weights"),
        ({"kv_type": "q8_0"}, "another type"),
        ({"n_layers": 2**31}, "another shape"),
        ({"head_dim": 16}, "another shape"),
        ({"rope_theta": 1e6}, "rope"),
        ({"rope_scaling_factor": 4.0}, "rope"),
        ({"pair_distance": 16}, "rope"),
        ({"frequencies_digest": bytes(16)}, "rope"),
        ({"layout_version": 2}, "another version of the engine"),
    ],
)
def test_a_state_from_other_conditions_is_refused_with_the_reason(
    state: Path, changed: dict[str, Any], reason: str
) -> None:
    session = session_of()
    raw = replace(Header.of(session, bytes(16)), **changed).to_bytes()
    state.write_bytes(raw + state.read_bytes()[HEADER_BYTES:])
    with pytest.raises(StateRefusedError, match=reason):
        restore_state(session, state)
    assert session.length == 0


@pytest.mark.parametrize(
    ("sessions", "reason"),
    [
        (({"kv": "f32"}, {"kv": "f16"}), "another type"),
        (({"kv": "f16"}, {"kv": "q8_0"}), "another type"),
        (({}, {"config": config_with(replace(ROPE, theta=5000.0), ROPE)}), "rope"),
        (({}, {"fingerprint": "12" * 32}), "another model"),
    ],
)
def test_a_session_of_another_kind_does_not_take_a_state(tmp_path: Path, sessions: Any, reason: str) -> None:
    save(session_of(30, **sessions[0]), tmp_path / "kv.state")
    with pytest.raises(StateRefusedError, match=reason):
        restore_state(session_of(**sessions[1]), tmp_path / "kv.state")


def resealed(raw: bytes, at: int, field: bytes) -> bytes:
    """Change a header's field, and its checksum accordingly."""
    header = raw[:at] + field + raw[at + len(field) : HEADER_BYTES - 32]
    return header + hashlib.sha256(header).digest() + raw[HEADER_BYTES:]


def test_a_newer_version_is_told_from_a_damaged_one_and_never_written_over(state: Path) -> None:
    newer = resealed(state.read_bytes(), 8, struct.pack("<I", layout.VERSION + 1))
    state.write_bytes(newer)
    session = session_of(20)
    with pytest.raises(StateRefusedError, match="another version") as caught:
        restore_state(session_of(), state)
    assert caught.value.is_newer
    saving = StateWriter(session, state)
    assert not saving.flush(60)
    assert "another version" in (saving.problem or "")
    saving.close()
    assert state.read_bytes() == newer


def test_a_newer_version_with_a_longer_header_is_never_written_over(state: Path) -> None:
    start = layout.MAGIC + struct.pack("<II", layout.VERSION + 1, 2 * HEADER_BYTES)
    padded = start.ljust(2 * HEADER_BYTES - layout.HEADER_DIGEST_BYTES, b"\1")
    newer = padded + hashlib.sha256(padded).digest() + state.read_bytes()[HEADER_BYTES:]
    state.write_bytes(newer)
    with pytest.raises(StateRefusedError, match="another version") as caught:
        restore_state(session_of(), state)
    assert caught.value.is_newer
    saving = StateWriter(session_of(50), state)
    assert not saving.flush(60)
    saving.close()
    assert state.read_bytes() == newer


def test_another_byte_order_is_refused(state: Path) -> None:
    state.write_bytes(resealed(state.read_bytes(), 16, state.read_bytes()[16:20][::-1]))
    with pytest.raises(StateRefusedError, match="byte order"):
        restore_state(session_of(), state)


def test_what_is_no_plain_file_of_ones_own_is_refused_without_waiting(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(StateRefusedError) as caught:
            restore_state(session_of(), path)
        return str(caught.value)

    (tmp_path / "link").symlink_to(state)
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir()
    (tmp_path / "other").write_bytes(b"GGUF" + bytes(500))
    (tmp_path / "other").chmod(0o600)
    assert "symbolic link" in refusal(tmp_path / "link")
    assert "not a regular file" in refusal(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "directory")
    assert "is not a saved state" in refusal(tmp_path / "other")
    state.chmod(0o620)
    assert "written by others" in refusal(state)
    state.chmod(0o600)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert "belongs to somebody else" in refusal(state)


def test_a_link_in_the_files_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "kv.state"
    victim.write_bytes(b"mine")
    path.symlink_to(victim)
    (tmp_path / ".kv.state.new").symlink_to(victim)
    save(session_of(30), path)
    assert victim.read_bytes() == b"mine"
    assert not path.is_symlink()
    assert restored(path).length == 30


class Failing:
    """Makes the n-th of the writer's system calls fail; others' are left alone."""

    CALLS = ("open", "write", "fsync", "replace", "close", "ftruncate", "lseek")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, code: int, on_and_on: bool) -> None:
        self.left, self.hit = number, ""
        self._code, self._on_and_on = code, on_and_on
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread().name == "state-writer":
                self.left -= 1
                if self.left == 0 or (self._on_and_on and self.left < 0 and name in ("write", "fsync", "ftruncate")):
                    self.hit = self.hit or name
                    if name == "close":
                        real(*arguments)  # the descriptor is gone even where closing fails
                    raise OSError(self._code, os.strerror(self._code))
            return real(*arguments, **named)

        return call


def test_a_file_system_that_cannot_sync_directories_is_written_to(tmp_path: Path, no_directory_syncs: None) -> None:
    save(session_of(30), tmp_path / "kv.state")
    assert restored(tmp_path / "kv.state").length == 30


_REFUSALS = (errno.ENOSPC, errno.EIO, errno.EROFS)


@pytest.mark.parametrize("on_and_on", [False, True])
@pytest.mark.parametrize("begin", ["no file", "an older file", "a file to go on with", "a file that is mostly dead"])
def test_every_call_that_fails_leaves_the_older_state_or_the_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str, on_and_on: bool
) -> None:
    path, hits, number = tmp_path / "kv.state", [], 0
    while True:
        number += 1
        path.unlink(missing_ok=True)
        if begin != "no file":
            save(session_of(70), path)
        session: Any = session_of(65, 15) if begin in ("no file", "an older file") else restored(path)
        with monkeypatch.context() as patch:
            patch.setattr(writer, "RETRY_S", 0.0)
            if begin == "a file that is mostly dead":
                session.truncate(9)
                patch.setattr(writer, "SLACK_BYTES", -1 << 30)
                patch.setattr(writer, "QUIET_S", 0.0)
            session.feed([11] * 80)
            saving = StateWriter(session, path)
            failing = Failing(patch, number, _REFUSALS[number % 3], on_and_on)  # the writer knows no difference
            if begin == "a file that is mostly dead":
                note_and_wait(saving)
            is_saved = saving.problem is None and saving.flush(60)
            problem = saving.problem
        if not failing.hit:
            saving.close()
            break
        hits.append(failing.hit)
        assert is_saved or problem, hits
        assert "\n" not in (problem or "")
        assert not (tmp_path / ".kv.state.new").exists(), hits
        if begin == "an older file":
            assert restored(path).length in (70, session.length)
        elif begin != "no file":
            assert restored(path).length >= 70
        assert saving.flush(60), saving.problem  # whatever it was, it is over
        saving.close()
        assert restored(path).tokens == session.tokens
        assert [place.name for place in tmp_path.iterdir() if place.name.startswith(".")] == []
    assert "write" in hits
    assert begin == "a file to go on with" or "replace" in hits


def test_a_device_that_writes_less_than_asked_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, memoryview(data)[:1000]))
    save(session_of(130), tmp_path / "kv.state")
    assert restored(tmp_path / "kv.state").length == 130


def test_a_nearly_full_disk_is_left_alone(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = restored(state)
    session.feed([5] * 50)
    monkeypatch.setattr(appending, "RESERVE_BYTES", 1 << 62)
    saving = StateWriter(session, state)
    assert not saving.flush(60)
    assert "nearly full" in (saving.problem or "")
    assert restored(state).length == 150
    monkeypatch.setattr(appending, "RESERVE_BYTES", 0)
    assert saving.flush(60)
    assert saving.problem is None
    saving.close()


def test_a_quota_stops_the_file_and_a_larger_one_lets_it_grow_on(tmp_path: Path) -> None:
    path, session = tmp_path / "kv.state", session_of(64)
    quota_bytes = record.file_bytes(session.cache, 100)
    saving = StateWriter(session, path, quota_bytes)
    assert saving.flush(60)
    session.feed([7] * 64)
    assert not saving.flush(60)
    assert "allowed" in (saving.problem or "")
    assert path.stat().st_size <= quota_bytes
    assert restored(path).length == 64
    saving.quota_bytes = None
    assert saving.flush(60)
    saving.close()
    assert restored(path).length == 128


def test_a_file_that_is_mostly_dead_is_written_anew_once_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SLACK_BYTES", 1 << 10)
    monkeypatch.setattr(writer, "QUIET_S", 0.0)
    path, session = tmp_path / "kv.state", session_of()
    saving = StateWriter(session, path)
    for number in range(6):
        session.truncate(3)
        session.feed([number] * 100)
        assert saving.flush(60)
    live_bytes = record.file_bytes(session.cache, session.length)
    assert path.stat().st_size > 3 * live_bytes
    session.feed([8])
    note_and_wait(saving)
    assert saving.flush(60)
    assert path.stat().st_size < 1.2 * live_bytes
    saving.close()
    assert restored(path).tokens == session.tokens


def test_a_file_that_was_deleted_or_replaced_meanwhile_is_written_anew(state: Path) -> None:
    session = restored(state)
    saving = StateWriter(session, state)
    for break_it in (state.unlink, lambda: os.replace(_copy(state), state), lambda: os.truncate(state, 1000)):
        break_it()
        session.feed([4] * 5)
        assert saving.flush(60), saving.problem
        assert restored(state).tokens == session.tokens
    saving.close()


def _copy(path: Path) -> Path:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes()[:-3])
    return copy


def test_a_session_that_was_filled_otherwise_does_not_go_on_with_the_file(state: Path) -> None:
    inode = state.stat().st_ino
    session = session_of(30)
    save(session, state)
    assert state.stat().st_ino != inode
    assert restored(state).tokens == session.tokens


def test_the_next_writer_of_a_session_goes_on_where_the_last_one_ended(state: Path) -> None:
    session = restored(state)
    inode, n_bytes = state.stat().st_ino, state.stat().st_size
    for cut, n in ((150, 5), (100, 9), (0, 30), (30, 2)):
        session.truncate(cut)
        save(session, state)
        session.feed([n] * n)
        save(session, state)
        assert restored(state).tokens == session.tokens
    assert state.stat().st_ino == inode
    assert state.stat().st_size < 2 * n_bytes
    other = state.with_name("other")
    save(session, other)
    session.feed([1, 2, 3])
    save(session, state)
    assert (restored(state).length, restored(other).length) == (35, 32)


def test_a_writer_that_was_left_while_the_device_hung_writes_nothing_of_what_came_next(tmp_path: Path) -> None:
    path, session = tmp_path / "kv.state", session_of(40)
    copy_out, copying, goes_on = session.cache.copy_out, threading.Event(), threading.Event()

    def copy_out_late(*arguments: Any) -> int:
        copying.set()
        assert goes_on.wait(60)
        return int(copy_out(*arguments))

    session.cache.copy_out = copy_out_late
    saving = StateWriter(session, path)
    assert not saving.flush(0.01)
    assert copying.wait(60)
    saving.close(0.01)
    session.truncate(0)
    session.feed([(11 * i) % 300 for i in range(60)])
    goes_on.set()
    saving._thread.join(60)
    saving.close()
    assert session.origin is None
    assert not path.exists()


def test_a_writer_sleeps_while_tokens_are_only_tried(tmp_path: Path) -> None:
    session = session_of(40)
    saving = StateWriter(session, tmp_path / "kv.state")
    assert saving.flush(60)
    n_attempts, many, attempt = 0, threading.Event(), saving._attempt

    def counted(*arguments: Any) -> None:
        nonlocal n_attempts
        n_attempts += 1
        if n_attempts > 5:
            many.set()
        attempt(*arguments)

    saving._attempt = counted  # type: ignore[method-assign]
    session.feed([1, 2])
    with session.cached.trying():
        session.feed(range(50))
        saving.note()
        assert not many.wait(0.5)
    saving.close()
