"""Numbers that products with matrices are multiplied by (``.scale``, as files of NVFP4 have
them)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse
from tests.engine.tiny_gguf import TinyGGUF

pytestmark = pytest.mark.slow

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def add_scales(described: TinyGGUF, are_applied: bool) -> TinyGGUF:
    """A number for every matrix and for each expert's; or the matrices multiplied by them."""
    rng = np.random.default_rng(3)
    for tensor in sorted(described.tensors, key=lambda entry: str(entry.name)):
        stem = str(tensor.name).removesuffix(".weight")
        matrix_name = stem.rpartition(".")[2]
        if matrix_name not in MATRICES + EXPERTS:
            continue
        scales = rng.uniform(0.5, 2, tensor.dims[2] if matrix_name in EXPERTS else 1).astype("<f4")
        if are_applied:
            weights = np.frombuffer(tensor.data, "<f4").reshape(len(scales), -1)
            tensor.data = (weights * scales[:, None]).tobytes()
        else:
            described.add_vector(stem + ".scale", scales)
            described.add_vector(stem + ".input_scale", scales)
    return described


@pytest.mark.smoke
@pytest.mark.parametrize("case", ["attention and experts", "experts next to a feed-forward"])
def test_scales_are_those_of_the_matrices(case: str, tmp_path: Path) -> None:
    results = []
    for are_applied in (True, False):
        described = (
            tiny_gguf.model("qwen3moe")
            if case == "attention and experts"
            else tiny_gguf.model("gemma4", experts_from=1)
        )
        described.drop_tensors("ffn_down_exps.scale")
        path = add_scales(described, are_applied).write(tmp_path / f"{are_applied}.gguf")
        model = Model.open(path, threads=2)
        session = model.session(n_ctx=64, kv="f32")
        results.append(np.vstack([session.feed(IDS, all_logits=True), session.feed([7])]))
        model.close()
    assert nmse(results[1], results[0]) < 1e-9


def test_scales_of_too_many_experts_are_refused(tmp_path: Path) -> None:
    described = add_scales(tiny_gguf.model("qwen3moe"), are_applied=False)
    described.tensor("blk.0.ffn_up_exps.scale").dims[0] = 5
    assert "blk.0.ffn_up_exps.scale has shape" in refusal(described.write(tmp_path / "model.gguf"))
