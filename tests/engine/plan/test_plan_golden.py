"""Rows of plans against recorded ones: refactoring must not change them."""

import os
from pathlib import Path

import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.plan_text import plan_lines

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = {
    "llama": {"architecture": "llama", "quant": "Q8_0", "rope_factors": True},
    "llama-tied-biases": {"architecture": "llama", "quant": "F32", "tied": True, "biases": True},
    "llama-mixed": {"architecture": "llama", "quant": "Q4_K", "n_layers": 1},
    "qwen2": {"architecture": "qwen2", "quant": "Q8_0"},
    "qwen3": {"architecture": "qwen3", "quant": "Q8_0", "head_dim": 32},
    "wide": {
        "architecture": "qwen3",
        "quant": "Q8_0",
        "n_layers": 1,
        "dim": 1024,
        "hidden_dim": 8192,
        "n_heads": 8,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_rows_of_a_plan_equal_the_recorded_ones(case: str, tmp_path: Path) -> None:
    """Set JALOPY_WRITE_PLANS=1 to record an intended change."""
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", **CASES[case]), threads=2)
    lines = "\n".join(plan_lines(model, "q8_0" if case == "qwen3" else "f16")) + "\n"
    # Recorded plans depend neither on VNNI nor on AVX2.
    lines = lines.replace("quantize q8_0 words", "quantize q8_0 bytes")
    lines = lines.replace("quantize q8_0 fours", "quantize q8_0")
    model.close()
    path = GOLDEN / f"{case}.plan"
    if os.environ.get("JALOPY_WRITE_PLANS"):
        path.write_text(lines, encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8")
