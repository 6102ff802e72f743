import os
import stat
from pathlib import Path

import pytest

from app.program import state
from app.program.state import (
    Measured,
    ProgramState,
    TunedChoice,
    load_state,
    remember_model,
    remember_thinking,
    remember_tuned,
    save_state,
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "state.json"
    monkeypatch.setattr(state.paths, "state_file", lambda: path)
    return path


def test_what_is_saved_is_loaded_again(file: Path) -> None:
    saved = ProgramState("/models/a.gguf", {"cpu|a": TunedChoice(2, 4)})
    assert save_state(saved) is None
    assert load_state() == (saved, None)


def test_circumstances_are_kept_with_a_choice_and_go_with_it(file: Path) -> None:
    choice, measured = TunedChoice(2, 4, True, "huge", "q8_0"), Measured("k1", True)
    remember_tuned("a", choice, measured)
    remember_tuned("b", TunedChoice(1, 1))
    loaded, _ = load_state()
    assert loaded.tuned_threads == {"a": choice, "b": TunedChoice(1, 1)}
    assert loaded.tuned_when == {"a": measured}
    remember_tuned("b", choice, measured, without="a")
    assert load_state()[0].tuned_threads == {"b": choice}
    remember_tuned("b", TunedChoice(1, 1))  # by hand
    assert load_state()[0].tuned_when == {}


def test_a_file_of_earlier_versions_is_understood(file: Path) -> None:
    file.parent.mkdir()
    tuned = b'"tuned_threads": {"k": {"decode": 1, "prefill": 2, "pinned": true}}'
    file.write_bytes(b'{"version": 1, ' + tuned + b"}")
    assert load_state() == (ProgramState(None, {"k": TunedChoice(1, 2, True)}), None)
    when = b'"tuned_when": {"k": {"kernels": "k1", "on_battery": true, "decode_tps": 5.5, "n_context": 64}}'
    file.write_bytes(b'{"version": 1, ' + tuned + b", " + when + b"}")
    expected = ProgramState(None, {"k": TunedChoice(1, 2, True)}, tuned_when={"k": Measured("k1", True)})
    assert load_state() == (expected, None)


def test_how_much_models_think_is_kept_and_the_oldest_go_first(file: Path) -> None:
    for n in range(202):
        remember_thinking(f"/m{n}", "500")
    remember_thinking("/m5", "auto")
    remember_thinking("/m7", "off")
    kept = load_state()[0].thinking
    assert len(kept) == 199
    assert (kept["/m2"], kept["/m7"], list(kept)[-1]) == ("500", "off", "/m7")
    assert not {"/m0", "/m1", "/m5"} & kept.keys()


def test_a_missing_file_is_no_notice(file: Path) -> None:
    assert load_state() == (ProgramState(), None)


def test_file_and_directory_are_for_the_user_alone(file: Path) -> None:
    save_state(ProgramState())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_remembering_one_thing_keeps_the_others(file: Path) -> None:
    remember_tuned("k", TunedChoice(1, 2))
    remember_model("relative.gguf")
    remember_tuned("l", TunedChoice(3, 4))
    loaded, _ = load_state()
    assert loaded.last_model == os.path.abspath("relative.gguf")
    assert loaded.tuned_threads == {"k": TunedChoice(1, 2), "l": TunedChoice(3, 4)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version": true}',
        b'{"version": 2}',
        b'{"version": 1, "last_model": 3}',
        b'{"version": 1, "last_model": "relative"}',
        b'{"version": 1, "last_model": "/a\\u0000b"}',
        b'{"version": 1, "tuned_threads": []}',
        b'{"version": 1, "tuned_threads": {"k": {"decode": 0, "prefill": 1}}}',
        b'{"version": 1, "tuned_threads": {"k": {"decode": true, "prefill": 1}}}',
        b'{"version": 1, "tuned_threads": {"k": {"decode": 1, "prefill": 1, "pinned": 2}}}',
        b'{"version": 1, "tuned_threads": {"k": 1}}',
        b'{"version": 1, "tuned_threads": {"k": {"decode": 1, "prefill": 1, "weights": "fast"}}}',
        b'{"version": 1, "tuned_threads": {"k": {"decode": 1, "prefill": 1, "kv_type": ["f16"]}}}',
        b'{"version": 1, "tuned_when": []}',
        b'{"version": 1, "tuned_when": {"k": {"on_battery": 1}}}',
        b'{"version": 1, "tuned_when": {"k": {"kernels": 3}}}',
        b'{"version": 1, "thinking": []}',
        b'{"version": 1, "thinking": {"/m": 3}}',
        b'{"version": 1, "thinking": {"/m": "loud"}}',
        b"[" * 100_000,
        b" " * (1 << 20) + b"{}",
    ],
)
def test_a_damaged_file_is_ignored_with_a_notice(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    loaded, notice = load_state()
    assert loaded == ProgramState()
    assert notice is not None
    assert str(file) in notice


def test_a_damaged_file_is_replaced_by_the_next_save(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"{")
    assert remember_model("/a.gguf") is None
    assert load_state()[0].last_model == "/a.gguf"


def test_a_file_of_a_newer_version_is_never_overwritten(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b'{"version": 2}')
    assert "newer version" in str(remember_model("/a.gguf"))
    assert file.read_bytes() == b'{"version": 2}'


def test_a_symbolic_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    file.parent.mkdir()
    target = tmp_path / "elsewhere"
    target.write_bytes(b'{"version": 1, "last_model": "/evil.gguf", "tuned_threads": {}}')
    file.symlink_to(target)
    loaded, notice = load_state()
    assert loaded.last_model is None
    assert notice


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(
    file: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(ProgramState("/old.gguf"))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(failing, fail)
        assert "No space left on device" in str(save_state(ProgramState("/new.gguf")))
    assert load_state()[0].last_model == "/old.gguf"
    assert [one.name for one in file.parent.iterdir()] == ["state.json"]


def test_a_file_system_without_directory_sync_is_written_to(file: Path, no_directory_syncs: None) -> None:
    assert save_state(ProgramState("/new.gguf")) is None
    assert load_state()[0].last_model == "/new.gguf"


def test_no_writable_directory_is_a_notice_and_no_exception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(state.paths, "state_file", lambda: tmp_path / "file" / "state.json")
    assert "nothing is remembered" in str(save_state(ProgramState()))
    monkeypatch.setattr(state.paths, "state_file", lambda: None)
    assert "nothing is remembered" in str(save_state(ProgramState()))
    assert load_state() == (ProgramState(), None)


def test_tuned_threads_can_be_forgotten_and_the_oldest_go_first(file: Path) -> None:
    for n in range(203):
        remember_tuned(f"k{n}", TunedChoice(1, 2, n % 2 == 0))
    kept = load_state()[0].tuned_threads
    assert len(kept) == 200
    assert "k2" not in kept
    remember_tuned("k202", None)
    assert "k202" not in load_state()[0].tuned_threads


def test_tuned_threads_without_a_pinning_field_are_not_pinned(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"version": 1, "tuned_threads": {"k": {"decode": 2, "prefill": 4}}}')
    assert load_state()[0].tuned_threads == {"k": TunedChoice(2, 4, False)}
