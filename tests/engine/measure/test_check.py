"""The comparison of kernels with float64 products, the first step of `jalopy bench`."""

from pathlib import Path

import pytest

from engine import Model
from engine.errors import BrokenModelError
from engine.measure.check import TOKEN_COUNTS, check_model, matmul_error
from engine.plan.buffers import Activations
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("quant", ["F16", "Q8_0", "Q4_K"])
def test_every_kernel_of_a_model_passes(tmp_path: Path, quant: str) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "tiny.gguf", "llama", quant), threads=1)
    for tensor in model.sample_tensors():
        for columns in TOKEN_COUNTS:
            assert 0 <= matmul_error(tensor, columns) < 1e-5
    check_model(model)
    model.close()


def test_a_wrong_result_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "tiny.gguf", "llama", "Q8_0"), threads=1)
    read = Activations.values
    monkeypatch.setattr(Activations, "values", lambda *arguments: 1.25 * read(*arguments))
    for columns in TOKEN_COUNTS:
        assert matmul_error(model.sample_tensors()[0], columns) == pytest.approx(0.2, rel=1e-4)
    with pytest.raises(BrokenModelError, match=r"kernel is off by 2\.0e-01"):
        check_model(model)
    model.close()


def test_a_wrong_kernel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "tiny.gguf", "llama", "Q8_0"), threads=1)
    monkeypatch.setattr(
        "engine.measure.check.matmul_error", lambda tensor, columns: 0.02 if columns > 8 else 0.0
    )
    with pytest.raises(BrokenModelError, match=r"kernel is off by 2\.0e-02"):
        check_model(model)
    model.close()
