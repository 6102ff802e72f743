"""Sampling parameters in effect: the settings with the values that ``/set`` chose."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.conversations.store import model_key
from app.program import state
from app.program.makers import Advice
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace
from app.program.samplers import SAMPLERS
from app.program.settings import AUTO, Settings, SettingsError, Source, as_number, override
from app.session import samplers
from app.text.clean_text import clean_line
from engine.prompt.thinking import ThinkingMode

if TYPE_CHECKING:
    from engine import Model, Sampling

USAGE = (
    "/set temperature 0.3 changes one, /set keep remembers them for this model, /set reset takes "
    "all back"
)
THINK_USAGE = (
    "/think on, off or auto; low, medium or high; or the most tokens of a thought, as /think 500"
)
KEEP = "keep"
RESET = "reset"


class GenerationChoice:
    """Sampling parameters that the user chose in the chat.

    The engine thread reads them as one record, which is replaced as a whole.

    Attributes:
        chosen: values that differ from the settings, by name.
        advice: values recommended for the model, by name; replaced as a whole.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._in_effect = settings
        """The settings with the chosen values."""
        self.chosen: Mapping[str, float] = {}
        self.advice: Advice = {}
        self._model_path: ModelPlace | None = None

    @property
    def names(self) -> list[str]:
        """Names of all parameters."""
        return list(SAMPLERS)

    @property
    def max_tokens(self) -> int:
        """Longest reply in tokens; 0 if only the context limits it."""
        return self._in_effect.sampling.max_tokens

    @property
    def differing(self) -> Mapping[str, float]:
        """Values chosen here, in the settings or on the command line, by name."""
        return self._in_effect.chosen_sampling

    def sampling(self, model: Model, mode: ThinkingMode) -> Sampling:
        """Return the sampling in effect. Called in the engine thread."""
        return samplers.make_sampling(self._in_effect, model, mode)

    def source(self, name: str) -> tuple[float, Source]:
        """Return the value of a parameter and its source."""
        if name in self.chosen:
            return self.chosen[name], Source.CHOSEN
        if name in self.advice and name not in self._settings.chosen_sampling:
            return self.advice[name]
        source = self._settings.sources.get(f"sampling.{name}", Source.DEFAULT)
        return getattr(self._settings.sampling, name), source

    def use(self, settings: Settings) -> None:
        """Use other settings; the chosen values stay."""
        chosen = self.chosen
        self._settings = settings
        self._reset()
        for name, value in chosen.items():
            self._choose(name, value, name)

    def recall(self, model_path: ModelPlace, advice: Advice | None = None) -> None:
        """Use the values remembered for a model, and the ``advice`` of its makers.

        Called in the engine thread.
        """
        self._model_path = model_path
        self.advice = advice or {}
        self._reset()
        sources = self._settings.sources
        remembered = state.load_state()[0].generation.get(model_key(model_path), {})
        for name, value in remembered.items():
            is_overridden = sources.get(f"sampling.{name}") is Source.COMMAND_LINE
            if name in SAMPLERS and not is_overridden:
                self._choose(name, value, name)

    def adopt(self, parameters: Mapping[str, float]) -> None:
        """Use the values of a preset, if it has any, and no others.

        Raises Refusal: a value is not allowed; nothing changes.
        """
        in_effect = self._in_effect
        chosen = self.chosen
        if parameters:
            self._reset()
        try:
            for name, value in parameters.items():
                self._set(name, [repr(value)])
        except Refusal:
            self._in_effect = in_effect
            self.chosen = chosen
            raise

    def run_command(self, argument: str) -> str:
        """Carry out ``/set`` and return the line to show.

        Raises Refusal: there is no such parameter, or the value is not allowed.
        """
        words = argument.replace("=", " ").split()
        if not words:
            return f"{self.described() or 'as the settings and the model say'}. {USAGE}"
        if words == [RESET]:
            self._reset()
            return "generation as the settings and the model say, from the next message on"
        if words == [KEEP]:
            return self._remember()
        return self._set(words[0].lower().replace("-", "_"), words[1:])

    def described(self) -> str:
        """Return the chosen values, as "temperature 0.3 · top_k 20"; empty if there are none."""
        return " · ".join(f"{name} {value:g}" for name, value in self.chosen.items())

    def _set(self, name: str, words: list[str]) -> str:
        if name not in SAMPLERS:
            nearest = difflib.get_close_matches(name, SAMPLERS, n=1, cutoff=0.0)[0]
            raise Refusal(
                f"there is no parameter {clean_line(name, 40)!r} (nearest: {nearest}); {USAGE}"
            )
        if len(words) != 1:
            value, source = self.source(name)
            raise Refusal(f"{name} is {value:g} ({source.value}); /set {name} VALUE changes it")
        try:
            self._choose(name, as_number(words[0]), f"/set {name}: the value")
        except SettingsError as error:
            raise Refusal(str(error)) from None
        return f"{name} {self.chosen[name]:g} from the next message on (/set keep remembers it)"

    def _choose(self, name: str, value: object, source: str) -> None:
        in_effect = override(self._in_effect, f"sampling.{name}", value, source)
        self._in_effect = in_effect
        self.chosen = {**self.chosen, name: getattr(in_effect.sampling, name)}

    def _reset(self) -> None:
        self._in_effect = self._settings
        self.chosen = {}

    def _remember(self) -> str:
        if self._model_path is None:
            raise Refusal("no model is loaded whose choice could be kept")
        trouble = state.remember_generation(model_key(self._model_path), self.chosen)
        return trouble or f"{self.described() or 'nothing of its own'}: remembered for this model"


def describe_thinking(mode: str) -> str:
    """Return a thinking mode in words."""
    if mode == AUTO:
        return "thinking is left to the model"
    if mode.isdigit():
        return f"thinking at most {mode} tokens"
    return f"thinking {mode}"
