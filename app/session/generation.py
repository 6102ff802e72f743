"""How replies are generated: the settings, with what ``/set`` chose laid over them; ``/think`` in
words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from app.conversations.store import model_key
from app.program import state
from app.program.makers import Advice
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace
from app.program.settings import AUTO, Settings, SettingsError, Source, as_number, override
from app.session import samplers
from app.text.clean_text import clean_line
from engine.prompt.thinking_mode import ThinkingMode

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
    """Values chosen in the chat.

    The engine's thread reads them as one record, which is replaced as a whole.
    """

    def __init__(self, settings: Settings) -> None:
        self._usual = self._now = settings
        self.chosen: Mapping[str, float] = {}
        """Values that differ from the settings, by name."""
        self.advice: Advice = {}
        """What is recommended for the model; replaced as a whole."""
        self._path: ModelPlace | None = None

    @property
    def names(self) -> list[str]:
        """Every parameter there is."""
        return [one.name for one in fields(self._usual.sampling)]

    @property
    def max_tokens(self) -> int:
        """Longest reply in tokens; 0 for no limit but the context."""
        return self._now.sampling.max_tokens

    def sampling(self, model: Model, mode: ThinkingMode) -> Sampling:
        """Return how tokens are chosen now. Called in the engine's thread."""
        return samplers.make_sampling(self._now, model, mode)

    def source(self, name: str) -> tuple[float, Source]:
        """Return the value in use, and where it comes from."""
        if name in self.chosen:
            return self.chosen[name], Source.CHOSEN
        if name in self.advice and name not in self._usual.chosen_sampling:
            return self.advice[name]
        return getattr(self._usual.sampling, name), self._usual.sources.get(
            f"sampling.{name}", Source.DEFAULT
        )

    def use(self, settings: Settings) -> None:
        """Take other settings; what was chosen stays."""
        chosen = self.chosen
        self._usual = settings
        self._lay(settings, {})
        for name, value in chosen.items():
            self._choose(name, value, name)

    def recall(self, path: ModelPlace, advice: Advice | None = None) -> None:
        """Take what is remembered for a model, and the ``advice`` on it.

        Called in the engine's thread.
        """
        self._path = path
        self.advice = advice or {}
        self._lay(self._usual, {})
        given = {
            key for key, source in self._usual.sources.items() if source is Source.COMMAND_LINE
        }
        for name, value in state.load_state()[0].generation.get(model_key(path), {}).items():
            if name in self.names and f"sampling.{name}" not in given:
                self._choose(name, value, name)

    def adopt(self, parameters: Mapping[str, float]) -> None:
        """Use a preset's values, if any, and no others.

        Raises Refusal: one is wrong; everything is as before.
        """
        before = self._now, self.chosen
        if parameters:
            self._lay(self._usual, {})
        try:
            for name, value in parameters.items():
                self._set(name, [repr(value)])
        except Refusal:
            self._lay(*before)
            raise

    @property
    def differing(self) -> Mapping[str, float]:
        """Values chosen here, in the settings or on the command line, by name."""
        return self._now.chosen_sampling

    def obey(self, wanted: str) -> str:
        """Do what comes after ``/set``; returns the line to show.

        Raises Refusal: no such parameter or value.
        """
        words = wanted.replace("=", " ").split()
        if not words:
            return f"{self.described() or 'as the settings and the model say'}. {USAGE}"
        if words == [RESET]:
            self._lay(self._usual, {})
            return "generation as the settings and the model say, from the next message on"
        if words == [KEEP]:
            return self._keep()
        return self._set(words[0].lower().replace("-", "_"), words[1:])

    def described(self) -> str:
        """Name what was chosen: "temperature 0.3 · top_k 20"; "" for nothing."""
        return " · ".join(f"{name} {value:g}" for name, value in self.chosen.items())

    def _set(self, name: str, words: list[str]) -> str:
        if name not in self.names:
            near = difflib.get_close_matches(name, self.names, n=1, cutoff=0.0)[0]
            raise Refusal(
                f"there is no parameter {clean_line(name, 40)!r} (nearest: {near}); {USAGE}"
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
        changed = override(self._now, f"sampling.{name}", value, source)
        self._lay(changed, {**self.chosen, name: getattr(changed.sampling, name)})

    def _keep(self) -> str:
        if self._path is None:
            raise Refusal("no model is loaded whose choice could be kept")
        trouble = state.remember_generation(model_key(self._path), self.chosen)
        return trouble or f"{self.described() or 'nothing of its own'}: remembered for this model"

    def _lay(self, settings: Settings, chosen: Mapping[str, float]) -> None:
        self._now = settings
        self.chosen = chosen


def describe_thinking(mode: str) -> str:
    """Say how much the model is asked to think."""
    if mode == AUTO:
        return "thinking is left to the model"
    if mode.isdigit():
        return f"thinking at most {mode} tokens"
    return f"thinking {mode}"
