"""The phimoe architecture: twin, tiny model, and longrope's factors by the session's context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.architectures.test_phi3 import longrope_of
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("phimoe", **{"vocabulary": "spm", "biases": True, **arguments})
    described.with_experts(hidden_dim=described.value("phimoe.feed_forward_length"), seed=7)
    described.add_biases("attn_output", ".attn_norm", ".ffn_norm", "output_norm")
    described.add_vector("output.bias", np.linspace(-0.2, 0.2, described.tensor("output.weight").dims[1]))
    return described


def logits(twin: Twin, ids: list[int], length: str = "short") -> Array:
    magnitude = twin.key("rope.scaling.attn_factor", 1.0)
    turn = twin.turner(len(ids), neighbours=False, magnitude=magnitude, factors=f"rope_factors_{length}.weight")
    x = twin.embed(ids)

    def norm(x: Array, name: str) -> Array:
        return twin.norm(x, name) + twin.tensor(name + ".bias")

    for block in twin.blocks:
        x = x + twin.attention(block, norm(x, block + "attn_norm"), turn)
        h = norm(x, block + "ffn_norm")
        x = x + twin.experts(block, h, twin.routes(block, h, is_renormalised=True))
    return twin.unembed(norm(x, "output_norm"))


@pytest.mark.parametrize(("n_ctx", "length"), [(64, "short"), (65, "long")])
def test_the_sessions_context_chooses_the_factors(n_ctx: int, length: str, tmp_path: Path) -> None:
    model = Model.open(longrope_of(tiny()).write(tmp_path / "m.gguf"))
    found = model.session(n_ctx=n_ctx, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS, length)) < 1e-9
    model.close()
