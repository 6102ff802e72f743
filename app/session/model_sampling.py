"""Sampling of a model's tokens, from the settings and the recommendations of its makers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from app.program.makers import advice_of
from app.program.settings import built_in_settings

if TYPE_CHECKING:
    from engine import Model, Sampling
    from engine.prompt.thinking import ThinkingMode


def make_sampling(choices: Mapping[str, float], model: Model, mode: ThinkingMode) -> Sampling:
    """Return the sampling for a model.

    Each value comes from the user, else from the model's file, else from its makers, else from the
    defaults.

    Args:
        choices: values that the user chose, by name.
    """
    from engine import Sampling

    defaults = built_in_settings().sampling
    names = [row.name for row in fields(Sampling) if hasattr(defaults, row.name)]
    values = {name: getattr(defaults, name) for name in names}
    for name, (value, _) in advice_of(model.metadata, mode).items():
        values[name] = value
    values |= {name: value for name, value in choices.items() if name in values}
    if values["seed"] < 0:
        values["seed"] = None
    return Sampling(**values)


def greedy_sampling() -> Sampling:
    """Return sampling that always takes the most likely token."""
    from engine import Sampling

    return Sampling.greedy()
