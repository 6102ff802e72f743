"""Sampling settings recommended by a model file: numbers in range are used, all else is ignored."""

import numpy as np
import pytest

from engine.sampling.advice import refused_keys, sampling_advice


def test_every_recommended_value_is_found_under_its_own_name():
    metadata = {
        "general.sampling.temp": float(np.float32(0.6)),
        "general.sampling.top_k": 20,
        "general.sampling.top_p": float(np.float32(0.95)),
        "general.sampling.min_p": 0.0,
        "general.sampling.penalty_repeat": float(np.float32(1.1)),
        "general.sampling.penalty_last_n": 256,
        "general.sampling.xtc_probability": 0.5,
        "general.sampling.xtc_threshold": float(np.float32(0.2)),
        "general.sampling.mirostat": 2,
    }
    assert sampling_advice(metadata) == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repeat_penalty": 1.1,
        "repeat_window": 256,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
    }


def test_files_without_advice_give_none():
    assert sampling_advice({"general.name": "llama"}) == {}


def test_minus_one_candidates_means_all():
    assert sampling_advice({"general.sampling.top_k": -1}) == {"top_k": 0}


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -0.5, 1e9, "0.7", True, 1, None, [0.7], b"0.7"], ids=repr
)
def test_an_invalid_temperature_is_left_out(value: object):
    assert sampling_advice({"general.sampling.temp": value}) == {}


@pytest.mark.parametrize("value", [1 << 63, -2, 0.5, "40", False])
def test_an_invalid_count_is_left_out(value: object):
    assert sampling_advice({"general.sampling.top_k": value}) == {}


def test_a_window_as_long_as_the_context_is_left_out():
    # llama.cpp's -1; 0 would switch the penalty off.
    assert sampling_advice({"general.sampling.penalty_last_n": -1}) == {}


def test_refused_keys_are_named_but_unknown_samplers_are_not():
    metadata = {
        "general.sampling.temp": -1.0,
        "general.sampling.top_p": 0.9,
        "general.sampling.mirostat": 1,
    }
    assert refused_keys(metadata | {"general.sampling.top_k": "many"}) == [
        "general.sampling.temp",
        "general.sampling.top_k",
    ]
    assert refused_keys({"general.name": "llama"}) == []
