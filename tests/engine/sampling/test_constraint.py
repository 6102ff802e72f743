"""Under a constraint, only allowed tokens can be chosen."""

import numpy as np
import pytest

from engine.errors import EngineError
from engine.sampling.constraint import constrained
from engine.sampling.sampler import Sampler
from engine.sampling.settings import Sampling

LOGITS = np.array([5, 1, 9, -3], np.float32)


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 100.0])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_only_allowed_tokens_are_chosen(temperature: float, penalty: float) -> None:
    allowed = np.array([False, True, False, True])
    sampling = Sampling(temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=penalty, seed=1)
    sampler = Sampler(sampling, 4)
    chosen = {sampler.choose(constrained(LOGITS, allowed), [0, 1, 2, 3]) for _ in range(300)}
    assert chosen <= {1, 3}
    assert chosen == {1, 3} or temperature < 1.0


def test_the_logits_stay_as_they_are() -> None:
    constrained(LOGITS, np.array([False, True, False, True]))
    assert LOGITS.tolist() == [5, 1, 9, -3]


def test_a_constraint_that_allows_no_token_is_refused() -> None:
    with pytest.raises(EngineError, match="no token"):
        constrained(LOGITS, np.zeros(4, np.bool_))
