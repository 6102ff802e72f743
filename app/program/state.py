"""State that the program learns by itself: last model, theme, tuned threads and memory modes.

It is only convenience, so nothing here raises: a damaged file is reported and ignored, and a failed
write gives a line.
"""

import dataclasses
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from app.program import paths
from app.program.settings import MOST_THREADS, SettingsError, built_in_settings, override
from app.program.small_file import DamagedFileError, JsonFile, NewerFileError, checked
from app.text.clean_text import clean_line, clean_text
from app.text.record import record
from engine import KV_TYPES
from engine.prompt.thinking import ThinkingMode

T = TypeVar("T")

VERSION = 1
_MAX_FILE_BYTES = 1 << 20
_MAX_TUNED = 200
"""Limit on tuned pairs of machine and model; the oldest are dropped."""
MOST_OPENED = 30
"""Limit on opened models; those opened longest ago are dropped."""
_LARGEST_BPS = 1e12
MAX_PROMPT_CHARS = 4000
_MAX_PROMPTS = 16
"""Limits on a model's system prompt and on the models that have one: the file has a limit, too."""
_MAX_PERSONA_CHARS = 60
WEIGHTS = ("", "mmap", "huge")


@record
class TunedChoice:
    """Threads and memory modes chosen by tuning."""

    decode: int
    prefill: int
    """Number of threads that write, and that read the prompt."""
    pinned: bool = False
    """Whether threads are bound to CPUs."""
    weights: str = ""
    kv_type: str = ""
    """Memory mode of weights and type of the KV cache, as in the settings; "" if not tuned."""


@record
class TuningConditions:
    """Conditions of a tuning run, to see whether its result is outdated."""

    kernels: str = ""
    """Version of the compiled kernels; "" if unknown."""
    on_battery: bool = False


@record
class ModelPrompt:
    """Beginning of new conversations with a model."""

    system: str = ""
    """System prompt; empty if a persona has it."""
    persona: str = ""
    """Name of a persona; empty for none."""


@record
class ProgramState:
    """Everything learned so far."""

    last_model: str | None = None
    """Absolute path of the last opened model."""
    tuned_threads: Mapping[str, TunedChoice] = field(default_factory=dict)
    """Tuned choices by machine and model."""
    theme: str | None = None
    """Theme chosen last on the screen."""
    tuned_when: Mapping[str, TuningConditions] = field(default_factory=dict)
    """Tuning conditions under the same keys. Choices made by hand have none."""
    thinking: Mapping[str, str] = field(default_factory=dict)
    """Thinking mode of each model by the path of its file. Models in their default mode are left
    out.
    """

    generation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Saved generation parameters of each model by the path of its file."""

    prompts: Mapping[str, ModelPrompt] = field(default_factory=dict)
    """Saved system prompt or persona of each model by the path of its file."""

    opened_models: tuple[str, ...] = ()
    """Absolute paths of opened models, the last one last."""

    offered_drafts: tuple[str, ...] = ()
    """Absolute paths of small models that were offered to guess for others, the last one last."""

    download_bps: float = 0.0
    """Bytes per second of the last download; 0 if there was none."""


def load_state() -> tuple[ProgramState, str | None]:
    """Return the state, and a line if its file cannot be used."""
    try:
        content = _file().load()
        return _parse(content) if content else ProgramState(), None
    except FileNotFoundError:
        return ProgramState(), None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return (
            ProgramState(),
            f"{paths.state_file()}: {reason}: starting without remembered choices",
        )


def save_state(state: ProgramState) -> str | None:
    """Replace the file (mode 0600, directory 0700); return a line if that failed."""
    path = paths.state_file()
    if path is None:
        return "the state directory is not writable: nothing is remembered"
    try:
        _file().save(**dataclasses.asdict(state))
    except NewerFileError as error:
        return f"{path}: {error}: left as it is"
    except OSError as error:
        return f"{path}: {error.strerror}: nothing is remembered"
    return None


def remember_model(model_path: Path | str) -> str | None:
    """Remember an opened model as the last one; return a line if that failed."""
    path = os.path.abspath(model_path)
    earlier_paths = [
        earlier_path for earlier_path in load_state()[0].opened_models if earlier_path != path
    ]
    return _update(last_model=path, opened_models=(*earlier_paths, path)[-MOST_OPENED:])


def remember_opened_model(model_path: Path | str) -> str | None:
    """Remember a model opened by a command other than chat; return a line if that failed."""
    path = os.path.abspath(model_path)
    opened = load_state()[0].opened_models
    if path in opened:
        return None
    return _update(opened_models=(*opened, path)[-MOST_OPENED:])


def remember_offered_draft(path: Path | str) -> bool:
    """Remember that a small model was offered; return whether it is the first time."""
    name = os.path.abspath(path)
    offered = load_state()[0].offered_drafts
    if name in offered:
        return False
    return _update(offered_drafts=(*offered, name)[-MOST_OPENED:]) is None


def remember_download_speed(bytes_per_s: float) -> str | None:
    """Remember the speed of a download; return a line if that failed."""
    return _update(download_bps=bytes_per_s)


def remember_theme(name: str) -> str | None:
    """Remember a theme; return a line if that failed."""
    return _update(theme=name)


def remember_thinking(model_key: str, mode: str) -> str | None:
    """Remember a model's thinking mode, or forget the default mode; return a line if that
    failed.
    """
    if ThinkingMode.parse(mode) != ThinkingMode():
        saved_mode = mode
    else:
        saved_mode = None
    return _update(thinking=_with(load_state()[0].thinking, model_key, saved_mode))


def remember_generation(model_key: str, chosen: Mapping[str, float]) -> str | None:
    """Remember a model's generation parameters, or forget them if there are none; return a line if
    that failed.
    """
    return _update(generation=_with(load_state()[0].generation, model_key, dict(chosen) or None))


def remember_prompt(model_key: str, prompt: ModelPrompt | None) -> str | None:
    """Remember a model's system prompt or persona, or forget it if it is None; return a line if
    that failed.
    """
    prompts = _with(load_state()[0].prompts, model_key, prompt)
    return _update(prompts=dict(list(prompts.items())[-_MAX_PROMPTS:]))


def remember_tuned(
    key: str,
    choice: TunedChoice | None,
    measured: TuningConditions | None = None,
    without: str = "",
) -> str | None:
    """Remember or forget a tuned choice, and forget the choice ``without``; return a line if that
    failed.
    """
    state, _ = load_state()
    choices = _with(_with(state.tuned_threads, without), key, choice)
    conditions = _with(
        _with(state.tuned_when, without), key, measured if choice is not None else None
    )
    return _update(
        tuned_threads=choices,
        tuned_when={name: value for name, value in conditions.items() if name in choices},
    )


def _update(**learned: Any) -> str | None:
    return save_state(dataclasses.replace(load_state()[0], **learned))


def _with(values: Mapping[str, T], key: str, value: T | None = None) -> dict[str, T]:
    """Return the values with one set, or removed if it is None; the oldest beyond the limit are
    dropped.
    """
    rest_ = [(name, saved_value) for name, saved_value in values.items() if name != key]
    return dict(rest_ if value is None else [*rest_, (key, value)][-_MAX_TUNED:])


def _file() -> JsonFile:
    return JsonFile(paths.state_file(), VERSION, _MAX_FILE_BYTES)


def _parse(content: dict[str, Any]) -> ProgramState:
    try:
        generation = _settings_of(content.get("generation"))
        prompts = _prompts_of(content.get("prompts"))
        state: ProgramState = checked(
            ProgramState, {**content, "generation": generation, "prompts": prompts}
        )
        for mode in state.thinking.values():
            ThinkingMode.parse(mode)
    except ValueError:
        raise DamagedFileError("not a state file") from None
    is_sound = all(map(_is_choice, state.tuned_threads.values()))
    is_sound &= 0 <= state.download_bps <= _LARGEST_BPS
    if not is_sound or not all(
        map(
            _is_path,
            [*filter(None, [state.last_model]), *state.opened_models, *state.offered_drafts],
        )
    ):
        raise DamagedFileError("not a state file")
    return dataclasses.replace(state, opened_models=state.opened_models[-MOST_OPENED:])


def _settings_of(value: object) -> dict[str, dict[str, Any]]:
    """Return the known sampling settings within their limits; later versions may have others."""
    sound_values: dict[str, dict[str, Any]] = {}
    for key, chosen in value.items() if isinstance(value, dict) else ():
        for name, number in chosen.items() if isinstance(chosen, dict) else ():
            with suppress(SettingsError, KeyError, StopIteration):
                override(built_in_settings(), f"sampling.{name}", number, name)
                sound_values.setdefault(key, {})[name] = number
    return sound_values


def _prompts_of(value: object) -> dict[str, dict[str, str]]:
    """Return the prompts of models that can be used, cleaned."""
    prompts: dict[str, dict[str, str]] = {}
    if not isinstance(value, dict):
        return prompts
    for key, saved in value.items():
        with suppress(ValueError):
            prompt: ModelPrompt = checked(ModelPrompt, saved)
            if len(prompt.system) <= MAX_PROMPT_CHARS and (prompt.system or prompt.persona):
                system = clean_text(prompt.system)
                persona = clean_line(prompt.persona, _MAX_PERSONA_CHARS)
                prompts[key] = {"system": system, "persona": persona}
    return dict(list(prompts.items())[-_MAX_PROMPTS:])


def _is_path(text: str) -> bool:
    return "\0" not in text and os.path.isabs(text)


def _is_choice(choice: TunedChoice) -> bool:
    are_counts = all(1 <= count <= MOST_THREADS for count in (choice.decode, choice.prefill))
    return are_counts and choice.weights in WEIGHTS and choice.kv_type in ("", *KV_TYPES)
