"""Each architecture's NumPy twin and tiny model: a row of ``rows.py``, or a file with tests of what it alone has."""

from importlib import import_module
from typing import Any

from engine.models import ARCHITECTURES

DISTINCT = [*{module: name for name, module in reversed(ARCHITECTURES.items())}.values()][::-1]
"""The first architecture of each file of ``engine/models``: others with the same layers are other names of it."""


def load(architecture: str) -> Any:
    """An architecture's row or module: ``tiny(**arguments)`` describes a file, ``logits(twin, ids)`` computes it."""
    rows = import_module("tests.engine.architectures.rows").ROWS
    if architecture in rows:
        return rows[architecture]
    return import_module(f"tests.engine.architectures.test_{architecture.replace('-', '_')}")
