"""The qwen3next architecture: twin, tiny model, and value heads whose key head is that of their neighbours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from tests.engine import tiny_gguf
from tests.engine.architectures import test_qwen35
from tests.engine.reference import Array, Twin
from tests.engine.refusals import refusal


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = test_qwen35.with_gated_experts(test_qwen35.tiny_of("qwen3next", **arguments))
    described.fuse("ssm_ba.weight", "ssm_beta.weight", "ssm_alpha.weight")
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    return test_qwen35.logits(twin, ids, is_grouped=True, feed_forward=partial(test_qwen35.gated_experts, twin))


def test_files_with_the_old_fused_projection_are_refused(tmp_path: Path) -> None:
    described = tiny()
    described.drop_tensors("blk.1.attn_qkv.weight", "blk.1.attn_gate.weight")
    data = np.zeros((384, 64), "<f4").tobytes()
    described.tensors.append(tiny_gguf.TensorEntry("blk.1.ssm_in.weight", [64, 384], GGMLQuantizationType.F32, data))
    assert "tensor blk.1.attn_qkv.weight is missing" in refusal(described.write(tmp_path / "model.gguf"))
