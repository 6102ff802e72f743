import time
from pathlib import Path

import pytest

from engine.gguf.title import model_title


@pytest.mark.parametrize(
    ("name", "file", "title"),
    [
        (
            "Qwen2.5 Coder 0.5B Instruct AWQ",
            "qwen2.5-coder-0.5b-instruct-q4_k_m",
            "qwen2.5-coder-0.5b-instruct",
        ),
        ("Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct"),
        ("Gemma 3 270m", "gemma-3-270m-q4_k_m", "Gemma 3 270m"),
        ("Llama 3.2 1B Instruct", "model", "Llama 3.2 1B Instruct"),
        ("Llama 3.2 1B Instruct", "sha256-0123456789abcdef", "Llama 3.2 1B Instruct"),
        ("model", "my-own", "my-own"),
        ("ggml-model", "my-own", "my-own"),
        ("", "Own-7B-Q8_0-00001-of-00003", "Own-7B"),
        ("2f8a9c1d2f8a9c1d2f8a", "my-own", "my-own"),
        ("/home/me/out", "my-own", "my-own"),
        ("Models", "Own-7B-Q8_0", "Own-7B"),
        ("", "my-own", "my-own"),
        (None, "my-own", "my-own"),
        (7, "Own-7B-IQ4_XS", "Own-7B"),
        ("Jalopy Starter", "starter", "Jalopy Starter"),
    ],
)
def test_the_better_of_two_titles_is_shown(name, file, title):
    assert model_title({"general.name": name}, Path(f"/models/{file}.gguf")) == title


@pytest.mark.parametrize("word", ["model", "a", "-", "0123456789abcdef", "s", "7b-"])
def test_a_hostile_name_takes_no_time(word):
    started_s = time.process_time()
    model_title({"general.name": word * 100_000 + "xyz!"}, Path(f"{word * 200}x.gguf"))
    assert time.process_time() - started_s < 0.5
