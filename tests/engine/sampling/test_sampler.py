"""The chain from logits to a token, compared with plain NumPy."""

import numpy as np
import pytest

from engine import EngineError, Sampling
from engine.errors import BrokenModelError
from engine.kernels import records
from engine.kernels.entries import run_entry
from engine.sampling.sampler import Sampler
from tests.engine.sampling.chain_twin import CHAINS, chi_square, model_like, twin


def frequencies(sampling: Sampling, logits: np.ndarray, n: int = 4000) -> np.ndarray:
    sampler = Sampler(sampling, len(logits))
    return np.bincount([sampler.choose(logits, []) for _ in range(n)], minlength=len(logits)) / n


def probabilities(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


LOGITS = np.array([1.0, 3.0, 2.5, -1.0, 0.0, 2.9, -4.0], np.float32)
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


def test_greedy_takes_the_first_of_the_largest_logits() -> None:
    sampler = Sampler(Sampling.greedy(), 4)
    assert sampler.choose(np.array([1, 5, 5, 2], np.float32), []) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_a_temperature(temperature: float) -> None:
    shares = frequencies(Sampling(temperature=temperature, **PLAIN), LOGITS)
    assert np.abs(shares - probabilities(LOGITS, temperature)).max() < 0.03


def test_top_k_keeps_the_k_likeliest() -> None:
    shares = frequencies(Sampling(temperature=5.0, **{**PLAIN, "top_k": 3}), LOGITS)
    assert set(np.flatnonzero(shares)) == {1, 5, 2}


def test_top_p_keeps_the_fewest_that_reach_the_share() -> None:
    p = np.sort(probabilities(LOGITS, 1.0))[::-1]
    share = p[0] + p[1] + 0.5 * p[2]
    shares = frequencies(Sampling(temperature=3.0, **{**PLAIN, "top_p": float(share)}), LOGITS)
    assert set(np.flatnonzero(shares)) == {1, 5, 2}


def test_top_p_of_one_keeps_even_the_least_likely_tokens() -> None:
    logits = np.zeros(1001, np.float32)
    logits[0] = 40.0
    shares = frequencies(Sampling(temperature=100.0, **PLAIN), logits, 500)
    assert shares[0] < 0.1, "it is 1.5 times as likely as each of a thousand others"


def test_min_p_is_relative_to_the_likeliest() -> None:
    shares = frequencies(Sampling(temperature=3.0, **{**PLAIN, "min_p": 0.5}), LOGITS)
    assert set(np.flatnonzero(shares)) == {
        i for i, x in enumerate(LOGITS) if np.exp(x - 3.0) >= 0.5
    }


def test_top_k_of_a_large_vocabulary_finds_the_largest() -> None:
    logits = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    sampler = Sampler(
        Sampling(temperature=10.0, top_k=5, top_p=1.0, min_p=0.0, seed=2), len(logits)
    )
    drawn = {sampler.choose(logits, []) for _ in range(300)}
    assert drawn == set(np.argsort(logits)[-5:].tolist())


def test_the_penalty_counts_a_token_once_within_its_window() -> None:
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    sampler = Sampler(Sampling(temperature=0.0, repeat_penalty=1.5, repeat_window=2), 3)
    assert sampler.choose(logits, [0, 0]) == 1
    assert sampler.choose(logits, [0, 2, 2]) == 0
    assert logits[0] == 2.0
    # 1.33; twice would be 0.89
    assert sampler.choose(np.array([2.0, 1.2, -1.0], np.float32), [0, 0]) == 0


def test_the_penalty_makes_a_negative_logit_smaller_too() -> None:
    sampler = Sampler(Sampling(temperature=0.0, repeat_penalty=1.5), 2)
    assert sampler.choose(np.array([-1.0, -1.2], np.float32), [0]) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error_not_a_token(bad: float, temperature: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature), 3)
    with pytest.raises(BrokenModelError):
        sampler.choose(np.array([1.0, bad, 0.0], np.float32), [])


@pytest.mark.parametrize("n", [1, 40, 255, 256, 257, 1000, 2047, 2049, 5000])
@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_every_logit_is_examined(n: int, temperature: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature), n)
    for index in {0, n // 2, n - 1}:
        logits = np.full(n, -1.0, np.float32)
        logits[index] = 1.0
        assert sampler.choose(logits, []) == index
        logits[index] = np.nan
        with pytest.raises(BrokenModelError):
            sampler.choose(logits, [])


@pytest.mark.parametrize("n", [40, 2049, 5000])
def test_greedy_takes_the_first_of_equals_far_apart(n: int) -> None:
    sampler = Sampler(Sampling.greedy(), n)
    logits = np.full(n, -1.0, np.float32)
    for index in (n - 1, n // 2, 3):
        logits[index] = 1.0
        assert sampler.choose(logits, []) == index


def copied(source: np.ndarray, target: np.ndarray) -> bool:
    return bool(
        run_entry("copy logits", records.LOGITS, logits=source, n=len(source), out=target)[
            records.LOGITS.result // 8
        ]
    )


@pytest.mark.parametrize("n", [1, 7, 256, 1001])
def test_logits_are_copied_and_checked_in_one_pass(n: int) -> None:
    source = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    target = np.empty_like(source)
    assert copied(source, target)
    assert (target == source).all()
    for index in {0, n // 2, n - 1}:
        for bad in (np.nan, np.inf, -np.inf):
            broken = source.copy()
            broken[index] = bad
            assert not copied(broken, target)


WRITTEN = [3, 7, 7, 2, 9, 11, 12, 40, 3, 7, 30, 2, 5, 5, 9, 11, 12, 3, 7]
BREAKER = 30


def piece(token: int) -> bytes:
    return b'say "' if token == BREAKER else f"w{token} ".encode()


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_draws_follow_the_chain_of_llama_cpp(chain: dict) -> None:
    sampling = Sampling(**{**PLAIN, "temperature": 1.0, **chain})
    logits = model_like(700)
    sampler = Sampler(sampling, len(logits), token_bytes=piece)
    drawn = [sampler.choose(logits, WRITTEN) for _ in range(4000)]
    counts = dict(zip(*map(np.ndarray.tolist, np.unique(drawn, return_counts=True)), strict=True))
    assert chi_square(counts, twin(logits, WRITTEN, sampling, frozenset({BREAKER}))) < 4


@pytest.mark.parametrize("cut", ["top_p", "typical_p", "top_k"])
@pytest.mark.parametrize(("share", "spread"), [(0.5, 0.0), (0.5, 1e-3), (0.5, 0.5), (0.0, 3.0)])
def test_a_large_vocabulary_is_cut_where_sorting_would(
    cut: str, share: float, spread: float
) -> None:
    # At a temperature of 100 all candidates are almost equally likely, so the drawn tokens show
    # where the cut is.
    logits = (np.random.default_rng(3).standard_normal(5000) * spread).astype(np.float32)
    sampling = Sampling(**{**PLAIN, "temperature": 100.0, cut: 3000 if cut == "top_k" else share})
    sampler = Sampler(sampling, len(logits))
    allowed = twin(logits, [], sampling)
    drawn = {sampler.choose(logits, []) for _ in range(3000)}
    if spread:
        assert drawn <= allowed.keys()
    assert len(drawn) > 0.4 * min(len(allowed), 3000)
    assert len(allowed) > 1 or len(drawn) == 1


def test_at_temperature_zero_the_likeliest_token_is_taken() -> None:
    logits = model_like(700)
    for chain in CHAINS.values():
        sampling = Sampling(**{**PLAIN, **chain, "temperature": 0.0})
        sampler = Sampler(sampling, len(logits), token_bytes=piece)
        allowed = twin(logits, WRITTEN, sampling, frozenset({BREAKER}))
        assert {sampler.choose(logits, WRITTEN) for _ in range(20)} <= allowed.keys()


def test_neutral_settings_leave_the_drawn_tokens_alone() -> None:
    logits = model_like(700)
    neutral = {
        "typical_p": 1.0,
        "top_n_sigma": 0.0,
        "xtc_probability": 0.0,
        "dry_multiplier": 0.0,
        "repeat_window": 0,
    }
    plain, neutral_sampler = (
        Sampler(Sampling(seed=5, **settings), 700) for settings in ({}, neutral)
    )
    assert [plain.choose(logits, WRITTEN) for _ in range(50)] == [
        neutral_sampler.choose(logits, WRITTEN) for _ in range(50)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 100.0])
def test_forbidden_tokens_are_never_drawn(temperature: float) -> None:
    logits = np.full(40, -50.0, np.float32)
    logits[4:30] = -1e30  # as under a constraint
    ends = (1, 2)
    sampling = Sampling(
        **{**PLAIN, "temperature": temperature, "ignore_eos": True, "logit_bias": ((0, -1e9),)}
    )
    drawn = {Sampler(sampling, 40, ends).choose(logits, []) for _ in range(200)}
    assert drawn.isdisjoint({0, 1, 2, *range(4, 30)})


def test_the_only_allowed_token_is_drawn_even_if_it_is_an_end() -> None:
    logits = np.full(40, -1e30, np.float32)
    logits[1] = 0.0
    for temperature in (0.0, 1.0):
        sampling = Sampling(**{**PLAIN, "temperature": temperature, "ignore_eos": True})
        assert Sampler(sampling, 40, (1, 2)).choose(logits, []) == 1


def test_dry_penalises_longer_repetitions_more() -> None:
    words = [5, 6, 7, 8, 9, 10, 5, 6, 7]  # 8 would be the fourth repeated token
    sampling = Sampling(temperature=0.0, dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=2)
    for lead, chosen in ((1.5, 1), (1.7, 8)):  # 0.8 * 2 ** (3 - 2) = 1.6
        logits = np.zeros(20, np.float32)
        logits[8] = 1.0 + lead
        logits[1] = 1.0
        assert Sampler(sampling, 20, token_bytes=piece).choose(logits, words) == chosen


@pytest.mark.parametrize("breaker", ["\n", "ab", "bab"])
def test_no_repetition_reaches_across_a_breaker(breaker: str) -> None:
    texts = {1: b"x\n", 2: b"a", 3: b"b", 4: b"ba"}
    ends = {"\n": [1], "ab": [2, 3], "bab": [4, 3]}[breaker]
    words = [5, 6, *ends, 7, 8, 9, 5, 6, *ends, 7]
    logits = np.zeros(20, np.float32)
    logits[8] = 1.0
    logits[2] = 0.5
    sampling = Sampling(temperature=0.0, dry_multiplier=9.0, dry_breakers=(breaker,))
    spelled = lambda token: texts.get(token, b"w")  # noqa: E731
    assert Sampler(sampling, 20, token_bytes=spelled).choose(logits, words) == 8, (
        "one token is repeated"
    )
    assert Sampler(sampling, 20, token_bytes=lambda token: b"w").choose(logits, words) == 2


def test_penalties_follow_a_growing_and_a_new_text() -> None:
    sampling = Sampling(
        temperature=0.0, frequency_penalty=0.4, dry_multiplier=1.0, repeat_window=50
    )
    sampler = Sampler(sampling, 30, token_bytes=piece)
    random = np.random.default_rng(2)
    words: list[int] = []
    for step in range(150):
        if step in (60, 90):
            words = words[:20] if step == 60 else [8, *words[1:40]]
        logits = random.standard_normal(30).astype(np.float32)
        chosen = sampler.choose(logits, words)
        assert chosen == Sampler(sampling, 30, token_bytes=piece).choose(logits, words)
        words.append(chosen)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0}, {"top_p": 1.5}, {"min_p": -0.1}, {"top_k": -1}, {"typical_p": 1.1},
        {"presence_penalty": 101.0}, {"dry_base": 0.5}, {"logit_bias": ((-1, 2.0),)},
        {"logit_bias": ((1, float("nan")),)},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(wrong: dict) -> None:
    with pytest.raises(EngineError, match=next(iter(wrong))):
        Sampling(**wrong)
