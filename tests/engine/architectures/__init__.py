"""Each architecture's NumPy twin and tiny model: a row of ``rows.py``, or a file with tests of what
it alone has."""

from importlib import import_module
from typing import Any

from engine.models import ARCHITECTURES

DISTINCT = [*{module: name for name, module in reversed(ARCHITECTURES.items())}.values()][::-1]
"""The first architecture of each file of ``engine/models``: others with the same layers are other
names of it."""
KINDS = (
    "llama", "phi2", "phi3", "gemma2", "gemma3", "gemma4", "olmo2", "mistral3", "cohere2", "glm4",
    "bloom", "gpt2",
    "granite_swa", "gpt-oss", "dbrx", "bailingmoe2", "smallthinker", "muse-glimmer", "apertus",
    "bitnet", "deepseek2",
    "minicpm3", "qwen35", "qwen3next", "lfm2moe", "falcon-h1", "granitehybrid", "nemotron_h_moe",
)  # fmt: skip
"""One architecture with each kind of rope, mask, norm, feed-forward, mixer and order of branches:
what depends on these and not on names is tested with them."""


def load(architecture: str) -> Any:
    """An architecture's row or module: ``tiny(**arguments)`` describes a file,
    ``logits(twin, ids)`` computes it."""
    rows = import_module("tests.engine.architectures.rows").ROWS
    if architecture in rows:
        return rows[architecture]
    return import_module(f"tests.engine.architectures.test_{architecture.replace('-', '_')}")
