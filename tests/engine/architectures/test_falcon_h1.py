"""The falcon-h1 architecture: twin, tiny model, and two mixers in a layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine import tiny_gguf
from tests.engine.architectures.test_granitehybrid import add_mamba2, mamba2
from tests.engine.reference import Array, Twin
from tests.engine.test_models import assert_equals_twin


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("falcon-h1", **{"vocabulary": "bpe", **arguments})
    layers = range(described.value("falcon-h1.block_count"))
    add_mamba2(described, arguments.get("quant", "F32"), layers, has_norm=False)
    described.rename("ffn_norm.weight", "ffn_norm")
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        x = x + twin.attention(block, h, turn) + mamba2(twin, block, h)
        bare = twin.tensor(block + "ffn_norm") is not None
        x = x + twin.feed_forward(block, twin.norm(x, block + "ffn_norm", "" if bare else ".weight"))
    return twin.head(x)


@pytest.mark.parametrize("variant", ["norm", "no bias", "named in full"])
def test_variants_equal_the_numpy_twin(variant: str, tmp_path: Path) -> None:
    described = tiny()
    if variant == "norm":
        described.drop_tensors(*(".ssm_in.weight", ".ssm_out.weight", "ssm_a", "ssm_d", "ssm_dt.bias"))
        described.drop_tensors("ssm_conv1d.weight", "ssm_conv1d.bias")
        add_mamba2(described, "F32", range(2), n_groups=1, n_heads=6, head_dim=16)
    elif variant == "no bias":
        described.drop_tensors("ssm_conv1d.bias")
    else:
        described.rename("ffn_norm", "ffn_norm.weight")
    assert_equals_twin(described, logits, tmp_path)
