"""Sampling of a model's tokens, from the settings and the recommendations of its makers."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from app.program.makers import advice_of
from app.program.settings import Settings

if TYPE_CHECKING:
    from engine import Model, Sampling
    from engine.prompt.thinking import ThinkingMode


def make_sampling(settings: Settings, model: Model, mode: ThinkingMode) -> Sampling:
    """Return the sampling for a model.

    Each value comes from the user, else from the model's file, else from its makers, else from the
    defaults.
    """
    from engine import Sampling

    sampling = settings.sampling
    names = [row.name for row in fields(Sampling) if hasattr(sampling, row.name)]
    values = {name: getattr(sampling, name) for name in names}
    for name, (value, _) in advice_of(model.metadata, mode).items():
        if name not in settings.chosen_sampling:
            values[name] = value
    values["seed"] = sampling.seed
    if sampling.seed < 0:
        values["seed"] = None
    return Sampling(**values)


def greedy_sampling() -> Sampling:
    """Return sampling that always takes the most likely token."""
    from engine import Sampling

    return Sampling.greedy()
