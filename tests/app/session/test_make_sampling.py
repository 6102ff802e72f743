"""Sampling values: from the user, else the model file, else its makers, else the defaults."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.program.settings import Settings, built_in_settings, load_settings, override
from app.session.model_sampling import make_sampling
from engine import Sampling
from engine.prompt.thinking import ThinkingMode

FILE = {"general.sampling.temp": 0.2, "general.sampling.top_k": 20}
QWEN = {"general.architecture": "qwen2", "general.basename": "Qwen2.5-Coder"}


def sampling_with(settings: Settings, metadata: dict[str, Any], mode: str = "auto") -> Sampling:
    return make_sampling(
        settings.chosen_sampling, SimpleNamespace(metadata=metadata), ThinkingMode.parse(mode)
    )


def test_values_of_the_model_override_the_defaults():
    chosen = sampling_with(built_in_settings(), FILE)
    assert (chosen.temperature, chosen.top_k, chosen.top_p) == (0.2, 20, 0.95)


def test_the_command_line_overrides_values_of_the_model():
    settings = override(built_in_settings(), "sampling.temperature", 1.5, "--temp")
    chosen = sampling_with(settings, FILE | QWEN)
    assert (chosen.temperature, chosen.top_k, chosen.top_p) == (1.5, 20, 0.8)


def test_the_user_file_overrides_values_of_the_model(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("[sampling]\ntemperature = 0.7\n", encoding="utf-8")
    assert sampling_with(load_settings(file), FILE).temperature == 0.7


def test_without_values_of_the_model_defaults_are_used():
    chosen = sampling_with(built_in_settings(), {})
    assert (chosen.temperature, chosen.top_k) == (0.7, 40)


def test_each_value_of_the_file_overrides_that_of_the_maker():
    chosen = sampling_with(built_in_settings(), QWEN | {"general.sampling.temp": 0.4})
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.repeat_penalty) == (
        0.4,
        20,
        0.8,
        1.05,
    )


def test_a_reply_with_thinking_has_other_values():
    qwen = {"general.architecture": "qwen3", "general.name": "Qwen3 4B"}
    for mode, temperature in (("auto", 0.6), ("on", 0.6), ("low", 0.6), ("500", 0.6), ("off", 0.7)):
        assert sampling_with(built_in_settings(), qwen, mode).temperature == temperature
    for mode in ("auto", "on"):
        instruct = qwen | {"general.name": "Qwen3 4B Instruct 2507", "general.basename": "Qwen3"}
        assert sampling_with(built_in_settings(), instruct, mode).temperature == 0.7
