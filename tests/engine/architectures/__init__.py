"""One file for each architecture: its NumPy twin, its tiny model, and tests of what it has that others lack."""

from importlib import import_module
from typing import Any


def load(architecture: str) -> Any:
    """The module of an architecture: ``tiny(**arguments)`` describes a file, ``logits(twin, ids)`` computes it."""
    return import_module(f"tests.engine.architectures.test_{architecture.replace('-', '_')}")
