"""NumPy twins and tiny models of architectures, each a row of ``rows.py`` or a separate test
file."""

from importlib import import_module
from typing import Any

from engine.models import ARCHITECTURES

DISTINCT = [*{module: name for name, module in reversed(ARCHITECTURES.items())}.values()][::-1]
"""First architecture of each file of ``engine/models``; the others have the same layers."""
KINDS = (
    "llama", "phi2", "phi3", "gemma2", "gemma3", "gemma4", "olmo2", "mistral3", "cohere2", "glm4",
    "bloom", "gpt2",
    "granite_swa", "gpt-oss", "dbrx", "bailingmoe2", "smallthinker", "muse-glimmer", "apertus",
    "bitnet", "deepseek2",
    "minicpm3", "qwen35", "qwen3next", "lfm2moe", "falcon-h1", "granitehybrid", "nemotron_h_moe",
)  # fmt: skip
"""Architectures that together have all types of RoPE, masks, norms, feed-forwards and mixers, and
all orders of branches; tests of these features run with them.
"""


def load(architecture: str) -> Any:
    """Return the row or module of an architecture.

    ``tiny(**arguments)`` describes a file, and ``logits(twin, ids)`` computes logits.
    """
    rows = import_module("tests.engine.architectures.rows").ROWS
    if architecture in rows:
        return rows[architecture]
    return import_module(f"tests.engine.architectures.test_{architecture.replace('-', '_')}")
