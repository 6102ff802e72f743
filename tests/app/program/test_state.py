import json
import os
from pathlib import Path

import pytest

from app.program import state
from app.program.state import (
    ProgramState,
    TunedChoice,
    TuningConditions,
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


def test_saved_state_is_loaded(file: Path) -> None:
    saved = ProgramState("/models/a.gguf", {"cpu|a": TunedChoice(2, 4)})
    assert save_state(saved) is None
    assert load_state() == (saved, None)


def test_conditions_are_saved_and_removed_with_a_choice(file: Path) -> None:
    choice = TunedChoice(2, 4, True, "huge", "q8_0")
    measured = TuningConditions("k1", True)
    remember_tuned("a", choice, measured)
    remember_tuned("b", TunedChoice(1, 1))
    loaded, _ = load_state()
    assert loaded.tuned_threads == {"a": choice, "b": TunedChoice(1, 1)}
    assert loaded.tuned_when == {"a": measured}
    remember_tuned("b", choice, measured, without="a")
    assert load_state()[0].tuned_threads == {"b": choice}
    remember_tuned("b", TunedChoice(1, 1))  # by hand
    assert load_state()[0].tuned_when == {}


def test_thinking_choices_are_saved_and_the_oldest_deleted(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_MAX_TUNED", 4)
    for n in range(6):
        remember_thinking(f"/m{n}", "500")
    remember_thinking("/m5", "auto")
    remember_thinking("/m3", "off")
    assert list(load_state()[0].thinking.items()) == [
        ("/m2", "500"),
        ("/m4", "500"),
        ("/m3", "off"),
    ]


def test_a_missing_file_gives_no_notice(file: Path) -> None:
    assert load_state() == (ProgramState(), None)


def test_saving_one_value_keeps_the_others(file: Path) -> None:
    remember_tuned("k", TunedChoice(1, 2))
    remember_model("relative.gguf")
    remember_tuned("l", TunedChoice(3, 4))
    loaded, _ = load_state()
    assert loaded.last_model == os.path.abspath("relative.gguf")
    assert loaded.tuned_threads == {"k": TunedChoice(1, 2), "l": TunedChoice(3, 4)}


SOUND = ProgramState(
    "/a.gguf",
    {"k": TunedChoice(1, 2)},
    "nord",
    {"k": TuningConditions()},
    {"/m": "off"},
    {"/m": {"top_k": 3}},
)
DAMAGE: tuple[tuple[str, object], ...] = (
    ("last_model", 3),
    ("last_model", "relative"),
    ("last_model", "/a\0b"),
    ("opened_models", ["relative"]),
    ("theme", 3),
    ("tuned_threads", []),
    ("tuned_threads", {"k": 1}),
    *(("tuned_threads", {"k": {**vars(TunedChoice(1, 1)), **change}})
      for change in ({"decode": 0}, {"decode": True}, {"pinned": 2}, {"weights": "fast"},
                     {"kv_type": ["f16"]})),
    ("tuned_when", []),
    ("tuned_when", {"k": {"kernels": 3, "on_battery": False}}),
    ("thinking", {"/m": 3}),
    ("thinking", {"/m": "loud"}),
)  # fmt: skip


def test_a_damaged_file_is_ignored_with_a_notice(file: Path) -> None:
    save_state(SOUND)
    assert load_state() == (SOUND, None)
    sound = json.loads(file.read_text())
    damaged = [json.dumps(sound | {name: value}) for name, value in DAMAGE]
    for content in ("{", '{"version": 2}', *damaged):
        file.write_text(content)
        loaded, notice = load_state()
        assert loaded == ProgramState(), content
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


def test_an_unwritable_directory_is_a_notice_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(state.paths, "state_file", lambda: tmp_path / "file" / "state.json")
    assert "nothing is remembered" in str(save_state(ProgramState()))
    monkeypatch.setattr(state.paths, "state_file", lambda: None)
    assert "nothing is remembered" in str(save_state(ProgramState()))
    assert load_state() == (ProgramState(), None)


def test_tuned_threads_can_be_removed_and_the_oldest_expire(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_MAX_TUNED", 2)
    for n in range(4):
        remember_tuned(f"k{n}", TunedChoice(1, 2, n % 2 == 0))
    assert list(load_state()[0].tuned_threads) == ["k2", "k3"]
    remember_tuned("k3", None)
    assert list(load_state()[0].tuned_threads) == ["k2"]


def test_a_file_without_newer_fields_is_read(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(
        '{"version": 1, "theme": "amber", "tuned_threads": {"k": {"decode": 1, "prefill": 2}}}'
    )
    assert load_state() == (
        ProgramState(theme="amber", tuned_threads={"k": TunedChoice(1, 2)}),
        None,
    )
    later = {"k": {"kernels": "x", "on_battery": True, "n_context": 5}}
    generation = {"/m": {"top_k": 7, "temperature": [1], "no_such": "x"}, "/n": 3}
    file.write_text(
        json.dumps({"version": 1, "later": 1, "tuned_when": later, "generation": generation})
    )
    assert load_state() == (
        ProgramState(
            tuned_when={"k": TuningConditions("x", True)}, generation={"/m": {"top_k": 7}}
        ),
        None,
    )
    file.write_text('{"version": 1, "tuned_threads": {"k": {"decode": 1}}}')
    assert load_state()[1] is not None
