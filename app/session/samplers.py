"""How tokens are chosen, from the settings."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from app.program.makers import advice_of
from app.program.settings import Settings

if TYPE_CHECKING:
    from engine import Model, Sampling
    from engine.prompt.thinking_mode import ThinkingMode


def make_sampling(settings: Settings, model: Model, mode: ThinkingMode) -> Sampling:
    """Return how tokens are chosen: as the user's settings say, else the model's file, else its
    makers, else ours."""
    from engine import Sampling

    chosen = settings.sampling
    values = {
        one.name: getattr(chosen, one.name) for one in fields(Sampling) if hasattr(chosen, one.name)
    }
    advice = advice_of(model.metadata, mode)
    values |= {
        name: value for name, (value, _) in advice.items() if name not in settings.chosen_sampling
    }
    if chosen.seed < 0:
        values["seed"] = None
    else:
        values["seed"] = chosen.seed
    return Sampling(**values)


def greedy_sampling() -> Sampling:
    """Return sampling that always takes the likeliest token."""
    from engine import Sampling

    return Sampling.greedy()
