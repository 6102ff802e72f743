"""Quantised types chosen for a file size: measurements of a model, and the best use of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Model
from engine.measure.budget import Budget, TypeCost, fit
from tests.engine import tiny_gguf

IDS = [(11 * n) % 97 + 3 for n in range(48)]


def some(*pairs: tuple[int, float]) -> list[TypeCost]:
    return [TypeCost(f"{n_bytes} bytes", n_bytes, error) for n_bytes, error in pairs]


def test_the_more_sensitive_tensor_gets_the_bytes() -> None:
    options = {name: some((10, 0.1), (20, 0.02), (30, 0.0)) for name in "ab"}
    assert fit(options, {"a": 1.0, "b": 9.0}, 30) == {"a": "10 bytes", "b": "20 bytes"}
    assert fit(options, {"a": 9.0, "b": 1.0}, 30) == {"a": "20 bytes", "b": "10 bytes"}
    assert fit(options, {"a": 1.0, "b": 9.0}, 60) == {"a": "30 bytes", "b": "30 bytes"}
    assert fit(options, {"a": 1.0, "b": 9.0}, 19) is None


def test_a_type_worse_than_a_smaller_one_is_not_chosen() -> None:
    options = {"a": some((10, 0.1), (12, 0.01), (15, 0.05), (30, 0.0))}
    assert fit(options, {"a": 1.0}, 29) == {"a": "12 bytes"}


def test_one_large_step_may_replace_several_small_ones() -> None:
    options = {
        "a": some((10, 0.1), (40, 0.0)),
        "b": some((10, 0.02), (11, 0.017)),
        "c": some((10, 0.02), (11, 0.017)),
    }
    assert fit(options, dict.fromkeys("abc", 1.0), 60) == {
        "a": "40 bytes",
        "b": "10 bytes",
        "c": "10 bytes",
    }


_pairs = st.lists(st.tuples(st.integers(1, 99), st.floats(0, 1)), min_size=1, max_size=5)


@given(
    st.lists(st.tuples(_pairs, st.floats(1e-3, 1e3)), min_size=1, max_size=5), st.integers(0, 500)
)
def test_no_choice_exceeds_the_available_bytes(
    tensors: list[tuple[list[tuple[int, float]], float]], most: int
) -> None:
    options = {str(n): some(*pairs) for n, (pairs, _) in enumerate(tensors)}
    chosen = fit(options, {str(n): harm for n, (_, harm) in enumerate(tensors)}, most)
    least = sum(min(choice.n_bytes for choice in choices) for choices in options.values())
    assert (chosen is None) == (least > most)
    if chosen is not None:
        assert sum(int(type_name.split()[0]) for type_name in chosen.values()) <= most


@pytest.mark.smoke
@pytest.mark.slow
def test_errors_and_sensitivities_of_a_model_are_measured(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.model(quant="F32", dim=128).write(tmp_path / "m.gguf"), threads=2)
    session = model.session(64, "f32")
    logits = session.feed(IDS)
    importance = {"blk.0.attn_q.weight": np.r_[np.full(64, 9.0), np.zeros(64)].astype(np.float32)}
    budget = Budget(model, session, importance, {"blk.1.attn_k.*": "Q5_0"})
    *_, (done, total) = budget.measure(IDS)
    assert done == total
    assert all(harm > 0 for harm in budget._sensitivities.values())
    errors = {choice.kind: choice.error for choice in budget._choices["blk.0.ffn_up.weight"]}
    assert errors["IQ4_NL"] > errors["Q5_0"] > errors["Q8_0"] > errors["F32"] == 0
    assert 1e-3 < errors["Q5_0"] < 4e-3  # at most a sixteenth of a block's largest value
    assert [choice.kind for choice in budget._choices["blk.1.attn_k.weight"]] == ["Q5_0"]
    session.truncate(0)
    assert (session.feed(IDS) == logits).all()  # the noise is removed
    types = budget.types(budget.least_bytes + 20_000)
    assert types is not None
    assert types["blk.1.attn_k.weight"] == "Q5_0"
    assert len(set(types.values())) > 1
    assert budget.types(budget.least_bytes - 1) is None
    model.close()
