"""How tokens are chosen: the user's settings go before the model's advice, and that before the program's own values."""

from pathlib import Path
from types import SimpleNamespace

from app.chat.opening import make_sampling
from app.program.settings import built_in_settings, load_settings, override

MODEL = SimpleNamespace(sampling_advice={"temperature": 0.2, "top_k": 20})


def test_a_models_advice_goes_before_the_programs_values():
    chosen = make_sampling(built_in_settings(), MODEL)
    assert (chosen.temperature, chosen.top_k, chosen.top_p) == (0.2, 20, 0.95)


def test_the_command_line_goes_before_a_models_advice():
    settings = override(built_in_settings(), "sampling.temperature", 1.5, "--temp")
    chosen = make_sampling(settings, MODEL)
    assert (chosen.temperature, chosen.top_k) == (1.5, 20)


def test_so_does_the_users_file_even_where_it_repeats_what_is_built_in(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("[sampling]\ntemperature = 0.7\n", encoding="utf-8")
    assert make_sampling(load_settings(file), MODEL).temperature == 0.7


def test_without_advice_the_programs_values_hold():
    chosen = make_sampling(built_in_settings(), SimpleNamespace(sampling_advice={}))
    assert (chosen.temperature, chosen.top_k) == (0.7, 40)
