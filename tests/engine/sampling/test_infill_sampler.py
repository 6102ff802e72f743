"""The sampler of text that fills a gap, with candidates worked out by hand."""

import numpy as np
import pytest

from engine.errors import BrokenModelError
from engine.sampling.infill import MAX_CANDIDATES, InfillSampler, candidates
from engine.sampling.sampler import Sampler
from engine.sampling.settings import Sampling

END = 9
TEXTS = [b"re", b"return", b"x", b"xy", b"", b"a", b"b", b"c", b"d", b"<end>"]


def sampler_of(**fields: float) -> InfillSampler:
    return InfillSampler(Sampling(**fields), {END}, TEXTS.__getitem__, 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shares", "remaining"),
    [
        # An end counts three times for each candidate.
        ({5: 0.8, END: 0.2}, {END: 1.0}),
        ({5: 0.9, 6: 0.05, END: 0.05}, {5: 0.9 / 0.95, END: 0.05 / 0.95}),
        # "re" begins "return": the likelier of the two gets both.
        ({1: 0.5, 5: 0.3, 0: 0.2}, {1: 0.7}),
        ({0: 0.5, 5: 0.3, 1: 0.2}, {0: 0.7}),
        # After candidates below 0.2 are dropped, those below 1 / (n + 1) are dropped.
        ({5: 0.6, 6: 0.25, 7: 0.15}, {5: 1.0}),
        ({5: 0.4, 6: 0.35, 7: 0.25}, {5: 0.4, 6: 0.35, 7: 0.25}),
        # Without a likely text the turn ends.
        ({5: 0.19, 6: 0.19, 7: 0.19, 8: 0.19, 2: 0.12, 1: 0.12}, {}),
        # A token without text merges with none.
        ({4: 0.5, 5: 0.5}, {4: 0.5, 5: 0.5}),
    ],
)
def test_candidates_are_merged_and_cut(
    shares: dict[int, float], remaining: dict[int, float]
) -> None:
    ids, probabilities = sampler_of().cut(list(shares), list(shares.values()))
    total = sum(remaining.values()) or 1.0
    expected = {token_id: share / total for token_id, share in remaining.items()}
    assert dict(zip(ids, probabilities, strict=True)) == pytest.approx(expected)


def test_other_samplers_leave_the_candidates() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.05, 0.03, 0.02], np.float32))
    assert candidates(logits, Sampling(top_k=3, top_p=1, min_p=0))[0] == [0, 1, 2]
    assert candidates(logits, Sampling(top_k=0, top_p=0.65, min_p=0))[0] == [0, 1]
    assert candidates(logits, Sampling(top_k=0, top_p=1, min_p=0.4))[0] == [0, 1, 2]
    assert candidates(logits, Sampling(top_k=0, top_p=1, min_p=0, top_n_sigma=0.5))[0] == [0, 1]
    ids, probabilities = candidates(logits, Sampling(top_k=2, top_p=1, min_p=0))
    assert (ids, probabilities) == ([0, 1], pytest.approx([4 / 7, 3 / 7]))


def test_a_reply_ends_rather_than_guess() -> None:
    logits = np.full(10, -1.0, np.float32)
    sampling = Sampling(infill=True, top_k=0, top_p=1, min_p=0, seed=1)
    sampler = Sampler(sampling, 10, {END}, TEXTS.__getitem__)
    assert sampler.choose(logits, []) == END
    logits[5] = 8.0
    assert sampler.choose(logits, []) == 5
    logits[5] = np.nan
    with pytest.raises(BrokenModelError):
        sampler.choose(logits, [])


def test_a_low_temperature_leaves_a_weight() -> None:
    logits = np.full(10, -50.0, np.float32)
    logits[[5, 6, 7]] = 1.0
    assert sampler_of(temperature=1e-3).choose(logits) in (5, 6, 7)


def test_a_large_vocabulary_takes_no_longer() -> None:
    sampling = Sampling(top_k=0, top_p=1, min_p=0)
    logits = np.linspace(-1.0, 1.0, 150_000).astype(np.float32)
    ids, probabilities = candidates(logits, sampling)
    assert ids == list(range(149_999, 149_999 - MAX_CANDIDATES, -1))
    assert sum(probabilities) == pytest.approx(1.0)


def test_the_same_seed_draws_the_same_tokens() -> None:
    logits = np.full(10, -50.0, np.float32)
    logits[[5, 6]] = 1.0
    drawn = [[sampler_of().choose(logits) for _ in range(20)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    sampler = sampler_of()
    assert {sampler.choose(logits) for _ in range(50)} == {5, 6}
