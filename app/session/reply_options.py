"""Sampling parameters in effect, and choices for replies in words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from app.conversations.session_options import SessionOptions, checked_sampling
from app.conversations.store import model_key
from app.program import state
from app.program.makers import Advice
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace
from app.program.samplers import SAMPLERS
from app.program.settings import AUTO, Settings, SettingsError, Source, as_number
from app.session.adapters import described
from app.text.clean_text import clean_line

USAGE = (
    "/set temperature 0.3 changes one, /set keep remembers them for this model, /set reset takes "
    "all back"
)
THINK_USAGE = (
    "/think on, off or auto; low, medium or high; or the most tokens of a thought, as /think 500"
)
KEEP = "keep"
RESET = "reset"


def parse_sampling(name: str, text: str) -> float:
    """Return the value of a sampling parameter. Raises Refusal: it is not allowed."""
    return check_sampling(name, as_number(text))


def check_sampling(name: str, value: object) -> float:
    """Return the value of a sampling parameter with its type.

    Raises Refusal: there is no such parameter, or the value is not allowed.
    """
    check_name(name)
    try:
        return checked_sampling(name, value, f"/set {name}: the value")
    except SettingsError as error:
        raise Refusal(str(error)) from None


def check_name(name: str) -> None:
    """Raise Refusal if there is no sampling parameter of this name."""
    if name not in SAMPLERS:
        nearest = difflib.get_close_matches(name, SAMPLERS, n=1, cutoff=0.0)[0]
        raise Refusal(
            f"there is no parameter {clean_line(name, 40)!r} (nearest: {nearest}); {USAGE}"
        )


def remembered_sampling(model_path: ModelPlace | str, settings: Settings) -> dict[str, float]:
    """Return the values that ``/set keep`` saved for a model, except those that the command line
    overrides."""
    remembered = state.load_state()[0].generation.get(model_key(model_path), {})
    values = {}
    for name, value in remembered.items():
        is_overridden = settings.sources.get(f"sampling.{name}") is Source.COMMAND_LINE
        if name in SAMPLERS and not is_overridden:
            with suppress(SettingsError):
                values[name] = checked_sampling(name, value, name)
    return values


def with_remembered(
    options: SessionOptions, model_path: ModelPlace | str, settings: Settings
) -> SessionOptions:
    """Return options with the values remembered for a model where nothing is chosen."""
    remembered = remembered_sampling(model_path, settings)
    return replace(options, sampling={**remembered, **options.sampling})


def without_command_line(options: SessionOptions, settings: Settings) -> SessionOptions:
    """Return saved options without the values that the command line overrides."""
    sources = settings.sources
    sampling = {
        name: value
        for name, value in options.sampling.items()
        if sources.get(f"sampling.{name}") is not Source.COMMAND_LINE
    }
    thinking = options.thinking
    if sources.get("thinking") is Source.COMMAND_LINE:
        thinking = ""
    return replace(options, sampling=sampling, thinking=thinking)


def sampling_and_source(
    name: str, sampling: Mapping[str, float], settings: Settings, advice: Advice
) -> tuple[float, Source]:
    """Return the value of a parameter and its source.

    Args:
        sampling: values that the user chose in the conversation.
        advice: values that the makers of the model recommend.
    """
    if name in sampling:
        return sampling[name], Source.CHOSEN
    if name in advice and name not in settings.chosen_sampling:
        return advice[name]
    source = settings.sources.get(f"sampling.{name}", Source.DEFAULT)
    return getattr(settings.sampling, name), source


def describe_sampling(sampling: Mapping[str, float]) -> str:
    """Return parameters in words, as "temperature 0.3 · top_k 20"; empty if there are none."""
    return " · ".join(f"{name} {value:g}" for name, value in sampling.items())


def describe_thinking(mode: str) -> str:
    """Return a thinking mode in words."""
    if mode == AUTO:
        return "thinking is left to the model"
    if mode.isdigit():
        return f"thinking at most {mode} tokens"
    return f"thinking {mode}"


def describe_form(options: SessionOptions) -> str:
    """Return the form of replies, as "answers as city.json"; empty for free text."""
    if options.form is None:
        return ""
    return f"answers as {options.form.name}"


def describe_persona(options: SessionOptions) -> str:
    """Return the persona in words; empty if there is none."""
    if not options.persona:
        return ""
    return f"persona {options.persona}"


def describe_options(options: SessionOptions, settings: Settings) -> str:
    """Return the options that differ from the settings; empty if none does."""
    sampling = {
        name: value
        for name, value in options.sampling.items()
        if getattr(settings.sampling, name) != value
    }
    thinking = ""
    if options.thinking not in ("", settings.thinking):
        thinking = describe_thinking(options.thinking)
    adapters = ""
    if options.adapters != settings.adapters:
        adapters = described(options.adapters)
    phrases = (
        describe_persona(options),
        describe_sampling(sampling),
        thinking,
        describe_form(options),
        adapters,
    )
    return " · ".join(filter(None, phrases))
