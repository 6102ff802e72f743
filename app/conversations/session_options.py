"""Choices that the user made in a conversation, and their saved form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import date
from typing import Any

from app.forms.answer_form import SCHEMA, AnswerForm, make_form
from app.program.refusals import Refusal
from app.program.samplers import SAMPLERS
from app.program.settings import built_in_settings, override, value_of
from app.text.clean_text import clean_line, clean_text
from app.text.record import record
from engine.prompt.thinking import ThinkingMode

MAX_ADAPTERS = 64
MAX_PATH_CHARS = 4096
_MAX_NAME_CHARS = 200
_MAX_PERSONA_CHARS = 60
_MAX_SAVED_CHARS = 1 << 19
_MAX_NAMES = 4
"""Limit on the names of options in a notice."""


@record
class SessionOptions:
    """Choices of the user for one conversation.

    It is replaced as a whole when a command changes it. Each request carries the options that hold
    for it.
    """

    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling parameters that ``/set`` chose, by name."""
    thinking: str = ""
    """Thinking mode that ``/think`` chose; empty if the model's usual mode holds."""
    form: AnswerForm | None = None
    """Form of replies that ``/schema`` chose; None for free text."""
    adapters: tuple[str, ...] = ()
    """Adapters of the model, named as in ``app.session.adapters``."""
    persona: str = ""
    """Name of the persona that the conversation began with; empty if it began with none."""
    date: str = ""
    """Day on which the conversation began, for the system prompt: ISO; empty if it names none. It
    stays, so that nothing is read again on another day."""


def checked_sampling(name: str, value: object, source: str) -> float:
    """Return a sampling parameter with its type.

    Args:
        source: name of the value for the error line.

    Raises SettingsError: the value is not allowed.
    """
    key = f"sampling.{name}"
    number: float = value_of(override(built_in_settings(), key, value, source), key)
    return number


def options_to_json(options: SessionOptions) -> str:
    """Return the options as JSON.

    If only adapters are chosen, it is their list, which older versions read too.
    """
    adapters = list(options.adapters)
    values: dict[str, Any] = {}
    if options.sampling:
        values["sampling"] = dict(options.sampling)
    if options.thinking:
        values["thinking"] = options.thinking
    if options.form is not None:
        values["form"] = {"text": options.form.text, "name": options.form.name}
    if options.persona:
        values["persona"] = options.persona
    if options.date:
        values["date"] = options.date
    if not values:
        return json.dumps(adapters)
    return json.dumps({**values, "adapters": adapters})


def options_from_json(text: str) -> tuple[SessionOptions, tuple[str, ...]]:
    """Return the options in a text from a file, and the names of those that were ignored."""
    try:
        if len(text) > _MAX_SAVED_CHARS:
            raise ValueError("too long")
        values = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return SessionOptions(), ("options",)
    if isinstance(values, list):
        values = {"adapters": values}
    if not isinstance(values, dict):
        return SessionOptions(), ("options",)

    options: dict[str, Any] = {}
    ignored = []
    for name, value in values.items():
        try:
            options[name] = _READERS[name](value)
        except (KeyError, TypeError, ValueError, OverflowError, Refusal):
            ignored.append(clean_line(name, 20) or "?")
    return SessionOptions(**options), tuple(ignored[:_MAX_NAMES])


def _read_sampling(value: Any) -> Mapping[str, float]:
    if not isinstance(value, dict) or not value.keys() <= SAMPLERS.keys():
        raise TypeError("not sampling parameters")
    return {name: checked_sampling(name, number, name) for name, number in value.items()}


def _read_thinking(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a mode")
    return str(ThinkingMode.parse(value))


def _read_form(value: Any) -> AnswerForm:
    text = value["text"]
    name = value["name"]
    if not isinstance(text, str) or not isinstance(name, str):
        raise TypeError("not a form")
    text.encode()  # Raises ValueError if the text is not valid Unicode.
    return make_form(SCHEMA, text, clean_line(name, _MAX_NAME_CHARS))


def _read_adapters(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    names = [clean_text(name) for name in value[:MAX_ADAPTERS] if isinstance(name, str) and name]
    return tuple(name[:MAX_PATH_CHARS] for name in names)


def _read_persona(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a name")
    return clean_line(value, _MAX_PERSONA_CHARS)


def _read_date(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a date")
    return date.fromisoformat(value).isoformat()


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "sampling": _read_sampling,
    "thinking": _read_thinking,
    "form": _read_form,
    "adapters": _read_adapters,
    "persona": _read_persona,
    "date": _read_date,
}
"""Functions that check a saved value, by the name of the option."""
