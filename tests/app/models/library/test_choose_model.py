from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.backend.local import engine_access
from app.models.library import choose_model as start
from app.models.library.choose_model import choose_model, remember_opened
from app.program import exit_codes
from app.program.bundled_model import model_path, starter_file
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from app.program.state import load_state, remember_model
from engine.errors import FileUnreadableError, GGUFError
from tests.engine.predicting import assistant_of, assisted_model


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let validation accept every file named "good.gguf", and return the validated paths."""
    seen: list[str] = []

    def validate(path: str) -> SimpleNamespace:
        seen.append(path)
        if not path.endswith("good.gguf"):
            raise GGUFError(f"{path}: is no GGUF file")
        return SimpleNamespace(gguf=SimpleNamespace(close=lambda: None))

    monkeypatch.setattr(engine_access, "validate_model", validate)
    return seen


def test_the_given_model_comes_before_the_model_setting(validated: list[str]) -> None:
    settings = replace(built_in_settings(), model="/other/good.gguf")
    assert choose_model("/here/good.gguf", settings) == "/here/good.gguf"
    assert choose_model(None, settings) == "/other/good.gguf"


def test_a_home_directory_is_expanded(
    validated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert choose_model("~/good.gguf", built_in_settings()) == "/home/me/good.gguf"


def test_a_broken_given_model_is_refused(validated: list[str]) -> None:
    with pytest.raises(GGUFError):
        choose_model("/bad.gguf", built_in_settings())


def test_an_unusable_model_setting_is_named_with_its_path() -> None:
    settings = replace(built_in_settings(), model="/x/nonexistent.gguf")
    line = "setting `model`: /x/nonexistent.gguf: no such file (check the path)"
    for check in (engine_access.check_model, engine_access.glance_at_model):
        with pytest.raises(Refusal) as caught:
            choose_model(None, settings, check)
        assert (str(caught.value), caught.value.exit_code) == (line, exit_codes.UNREADABLE)
        with pytest.raises(FileUnreadableError, match=r"^nonexistent\.gguf: no such file"):
            choose_model("/x/nonexistent.gguf", settings, check)


def test_without_any_model_the_bundled_model_is_used(validated: list[str]) -> None:
    assert choose_model(None, built_in_settings()) == str(starter_file())
    assert validated == []


def test_there_is_no_model_if_the_bundled_one_is_missing(
    validated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "starter_file", lambda: None)
    assert choose_model(None, built_in_settings()) is None


def test_the_bundled_model_does_not_replace_the_last_model(tmp_path: Path) -> None:
    remember_opened(tmp_path / "good.gguf")
    bundled = starter_file()
    assert bundled is not None
    assert remember_opened(bundled) is None
    assert load_state()[0].last_model == str(tmp_path / "good.gguf")


def test_a_new_model_folder_is_suggested_once(tmp_path: Path) -> None:
    first, second, alone, listed = map(
        tmp_path.joinpath, ("a/one.gguf", "a/other.gguf", "b/alone.gguf", "c/d/one.gguf")
    )
    for path in (first, second, alone, listed, listed.with_stem("two")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    assert not remember_opened(alone)
    assert not remember_opened(listed, [str(tmp_path / "c")])
    assert f"Found 2 models in {tmp_path / 'a'}" in str(remember_opened(first))
    assert not any(map(remember_opened, (first, second)))


def test_starter_is_the_bundled_model_unless_a_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_path("starter") == starter_file()
    (tmp_path / "starter").write_bytes(b"")
    assert model_path("starter") == Path("starter")


def test_the_last_model_is_used_if_it_exists_and_is_sound(
    validated: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.gguf"
    bad = tmp_path / "bad.gguf"
    remember_model(good)
    assert choose_model(None, built_in_settings()) == str(starter_file())
    good.write_bytes(b"")
    assert choose_model(None, built_in_settings()) == str(good)
    bad.write_bytes(b"")
    remember_model(bad)
    assert choose_model(None, built_in_settings()) == str(starter_file())
    assert "cannot open the last model" in capsys.readouterr().err
    assert load_state()[0].last_model == str(bad)


def test_before_a_screen_opens_a_quick_check_is_enough(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF" + bytes(60))
    check = engine_access.glance_at_model
    assert choose_model(str(cut), built_in_settings(), check) == str(cut)
    cut.write_bytes(b"<html>")
    with pytest.raises(GGUFError, match="web page"):
        choose_model(str(cut), built_in_settings(), check)


def test_a_small_model_that_can_guess_is_offered_once(tmp_path: Path) -> None:
    described = assisted_model()
    model = described.write(tmp_path / "gemma.gguf")
    other = assistant_of(described)
    other.set("gemma4-assistant.embedding_length_out", 128)
    other.write(tmp_path / "another.gguf")
    remember_opened(model)
    assert remember_opened(model, draft_model="offer") is None
    assistant_of(described).write(tmp_path / "drafts.gguf")
    assert remember_opened(model, draft_model="off") is None
    offer = str(remember_opened(model, draft_model="offer"))
    assert offer.startswith("drafts.gguf can guess for this model")
    assert "--draft auto" in offer
    assert remember_opened(model, draft_model="offer") is None
