"""Computations without a reply, such as embeddings and counts of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.text.record import record


@record
class Computation:
    """Short computation that a request asks for; it runs between two steps of replies."""

    compute: Callable[[str, Any], dict[str, Any]]
    """Function of the model's name and the model that returns the body of the response."""
    unloads_model: bool = False
    """Whether the model is closed as soon as it is idle."""
