"""Log-probabilities: those of the softmax, in the order of likelihood, whatever the logits are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.logprobs import token_logprobs

FLOATS = st.floats(-300, 300, width=32)


@given(st.lists(FLOATS, min_size=1, max_size=40), st.data())
def test_they_are_the_logarithms_of_the_softmax(values: list[float], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(values) - 1))
    n_top = data.draw(st.integers(0, 50))
    found = token_logprobs(np.array(values, np.float32), token, n_top)
    most = max(values)
    whole = most + math.log(math.fsum(math.exp(value - most) for value in values))
    in_order = sorted(range(len(values)), key=lambda one: (-values[one], one))[:n_top]
    assert found.chosen == pytest.approx(values[token] - whole, abs=1e-9)
    assert [one for one, _ in found.top] == in_order
    assert [value for _, value in found.top] == pytest.approx(
        [values[one] - whole for one in in_order], abs=1e-9
    )


def test_of_equal_tokens_the_first_ones_are_given() -> None:
    found = token_logprobs(np.zeros(8, np.float32), 5, 3)
    assert [one for one, _ in found.top] == [0, 1, 2]
    assert found.chosen == pytest.approx(-math.log(8))


def test_the_logits_stay_as_they_are() -> None:
    logits = np.arange(5, dtype=np.float32)
    token_logprobs(logits, 0, 2)
    assert logits.tolist() == [0, 1, 2, 3, 4]
