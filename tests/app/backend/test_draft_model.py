"""The setting draft_model: the file of a small model that guesses for another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.backend.local import engine_access
from app.cli import arguments
from app.program.settings import built_in_settings
from tests.engine.predicting import assistant_of, assisted_model


@pytest.mark.parametrize(
    ("draft_model", "guess_ahead", "is_used"),
    [
        ("offer", "on", False),
        ("off", "on", False),
        ("auto", "on", True),
        ("auto", "predictor", True),
        ("auto", "text", False),
        ("FILE", "on", True),
        ("FILE", "off", False),
    ],
)
def test_the_setting_decides_which_small_model_guesses(
    draft_model: str, guess_ahead: str, is_used: bool, tmp_path: Path
) -> None:
    described = assisted_model()
    path = described.write(tmp_path / "m.gguf")
    assistant = assistant_of(described).write(tmp_path / "assistant.gguf")
    settings = replace(
        built_in_settings(),
        draft_model=draft_model.replace("FILE", str(assistant)),
        guess_ahead=guess_ahead,
    )
    model = engine_access.open_model(settings, path)
    assert (model.assistant.assistant is not None) == is_used
    assert not model.assistant.problem
    model.close()


def test_a_missing_small_model_is_named_and_not_used(tmp_path: Path) -> None:
    path = assisted_model().write(tmp_path / "m.gguf")
    settings = replace(built_in_settings(), draft_model=str(tmp_path / "none.gguf"))
    model = engine_access.open_model(settings, path)
    assert model.notices[0] == "none.gguf: no such file (check the path): it is not used"
    model.close()


@pytest.mark.parametrize("command", ["chat", "run", "serve", "bench"])
def test_an_option_names_the_small_model(command: str) -> None:
    words = [command, "model.gguf", "--draft", "small.gguf"]
    settings = arguments.apply(arguments.parse(words), built_in_settings())
    assert settings.draft_model == "small.gguf"
