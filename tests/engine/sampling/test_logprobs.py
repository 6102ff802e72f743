"""Log-probabilities equal those of the softmax and are sorted by likelihood."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.logprobs import token_logprobs

FLOATS = st.floats(-300, 300, width=32)


@given(st.lists(FLOATS, min_size=1, max_size=40), st.data())
def test_logprobs_are_the_logarithms_of_the_softmax(
    values: list[float], data: st.DataObject
) -> None:
    token = data.draw(st.integers(0, len(values) - 1))
    n_top = data.draw(st.integers(0, 50))
    logprobs = token_logprobs(np.array(values, np.float32), token, n_top)
    largest = max(values)
    log_total = largest + math.log(math.fsum(math.exp(value - largest) for value in values))
    in_order = sorted(range(len(values)), key=lambda token_id: (-values[token_id], token_id))[
        :n_top
    ]
    assert logprobs.chosen == pytest.approx(values[token] - log_total, abs=1e-9)
    assert [token_id for token_id, _ in logprobs.top] == in_order
    assert [value for _, value in logprobs.top] == pytest.approx(
        [values[token_id] - log_total for token_id in in_order], abs=1e-9
    )


def test_among_equal_tokens_the_first_are_listed() -> None:
    logprobs = token_logprobs(np.zeros(8, np.float32), 5, 3)
    assert [token_id for token_id, _ in logprobs.top] == [0, 1, 2]
    assert logprobs.chosen == pytest.approx(-math.log(8))


def test_the_logits_stay_as_they_are() -> None:
    logits = np.arange(5, dtype=np.float32)
    token_logprobs(logits, 0, 2)
    assert logits.tolist() == [0, 1, 2, 3, 4]
