"""The qwen35moe architecture: twin and tiny model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from engine.config import DeltaNet, Experts, Router
from tests.engine import tiny_gguf
from tests.engine.architectures import test_qwen35
from tests.engine.reference import Array, Twin
from tests.engine.test_config import config_of


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return test_qwen35.with_gated_experts(test_qwen35.tiny_of("qwen35moe", **arguments))


def logits(twin: Twin, ids: list[int]) -> Array:
    return test_qwen35.logits(twin, ids, feed_forward=partial(test_qwen35.gated_experts, twin))


def test_recurrent_layers_have_experts_too(tmp_path: Path) -> None:
    layers = config_of(tiny(n_layers=3).write(tmp_path / "m.gguf")).layers
    assert [isinstance(layer.mixer, DeltaNet) for layer in layers] == [False, True, False]
    assert [isinstance(layer.feed_forward, Experts) for layer in layers] == [True] * 3
    assert {layer.feed_forward.router for layer in layers if isinstance(layer.feed_forward, Experts)} == {
        Router(renormalised=True)
    }
