"""The chain from logits to a token, against a plain NumPy twin."""

import numpy as np
import pytest

from engine import EngineError, Sampling
from engine.errors import BrokenModelError
from engine.sampling.sampler import Sampler
from engine.sampling.sampling_kernels import copy_logits


def frequencies(sampling: Sampling, logits: np.ndarray, n: int = 4000) -> np.ndarray:
    sampler = Sampler(sampling, len(logits))
    return np.bincount([sampler.choose(logits, []) for _ in range(n)], minlength=len(logits)) / n


def probabilities(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


LOGITS = np.array([1.0, 3.0, 2.5, -1.0, 0.0, 2.9, -4.0], np.float32)
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


def test_greedy_takes_the_first_of_the_largest() -> None:
    sampler = Sampler(Sampling.greedy(), 4)
    assert sampler.choose(np.array([1, 5, 5, 2], np.float32), []) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_a_temperature(temperature: float) -> None:
    found = frequencies(Sampling(temperature=temperature, **PLAIN), LOGITS)
    assert np.abs(found - probabilities(LOGITS, temperature)).max() < 0.03


def test_top_k_keeps_the_k_likeliest() -> None:
    found = frequencies(Sampling(temperature=5.0, **{**PLAIN, "top_k": 3}), LOGITS)
    assert set(np.flatnonzero(found)) == {1, 5, 2}


def test_top_p_keeps_the_fewest_that_reach_the_share() -> None:
    p = np.sort(probabilities(LOGITS, 1.0))[::-1]
    share = p[0] + p[1] + 0.5 * p[2]
    found = frequencies(Sampling(temperature=3.0, **{**PLAIN, "top_p": float(share)}), LOGITS)
    assert set(np.flatnonzero(found)) == {1, 5, 2}


def test_top_p_of_one_keeps_even_what_adds_nothing_to_the_sum() -> None:
    logits = np.zeros(1001, np.float32)
    logits[0] = 40.0
    found = frequencies(Sampling(temperature=100.0, **PLAIN), logits, 500)
    assert found[0] < 0.1, "it is 1.5 times as likely as each of a thousand others"


def test_min_p_is_relative_to_the_likeliest() -> None:
    found = frequencies(Sampling(temperature=3.0, **{**PLAIN, "min_p": 0.5}), LOGITS)
    assert set(np.flatnonzero(found)) == {i for i, x in enumerate(LOGITS) if np.exp(x - 3.0) >= 0.5}


def test_top_k_of_a_large_vocabulary_finds_the_largest() -> None:
    logits = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    sampler = Sampler(Sampling(temperature=10.0, top_k=5, top_p=1.0, min_p=0.0, seed=2), len(logits))
    drawn = {sampler.choose(logits, []) for _ in range(300)}
    assert drawn == set(np.argsort(logits)[-5:].tolist())


def test_the_penalty_counts_a_token_once_and_only_within_its_window() -> None:
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    sampler = Sampler(Sampling(temperature=0.0, repeat_penalty=1.5, repeat_window=2), 3)
    assert sampler.choose(logits, [0, 0]) == 1
    assert sampler.choose(logits, [0, 2, 2]) == 0
    assert logits[0] == 2.0
    assert sampler.choose(np.array([2.0, 1.2, -1.0], np.float32), [0, 0]) == 0  # 1.33; twice would be 0.89


def test_the_penalty_makes_a_negative_logit_smaller_too() -> None:
    sampler = Sampler(Sampling(temperature=0.0, repeat_penalty=1.5), 2)
    assert sampler.choose(np.array([-1.0, -1.2], np.float32), [0]) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error_not_a_token(bad: float, temperature: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature), 3)
    with pytest.raises(BrokenModelError):
        sampler.choose(np.array([1.0, bad, 0.0], np.float32), [])


@pytest.mark.parametrize("n", [1, 40, 255, 256, 257, 1000])
@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_every_place_of_the_logits_is_looked_at(n: int, temperature: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature), n)
    for at in {0, n // 2, n - 1}:
        logits = np.full(n, -1.0, np.float32)
        logits[at] = 1.0
        assert sampler.choose(logits, []) == at
        logits[at] = np.nan
        with pytest.raises(BrokenModelError):
            sampler.choose(logits, [])


@pytest.mark.parametrize("n", [1, 7, 256, 1001])
def test_logits_are_copied_and_looked_at_in_one_pass(n: int) -> None:
    source = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    target = np.empty_like(source)
    assert copy_logits(source, target)
    assert (target == source).all()
    for at in {0, n // 2, n - 1}:
        for bad in (np.nan, np.inf, -np.inf):
            broken = source.copy()
            broken[at] = bad
            assert not copy_logits(broken, target)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 1.5}, {"min_p": -0.1}, {"top_k": -1}])
def test_settings_out_of_range_are_named(wrong: dict) -> None:
    with pytest.raises(EngineError, match=next(iter(wrong))):
        Sampling(**wrong)
