"""State that the program learns by itself: the last model, the best threads and memory modes. No
settings.

Losing it costs convenience, so nothing here raises: a damaged file is left with a notice, a failed
write is a line.
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
from app.text.record import record
from engine import KV_TYPES
from engine.prompt.thinking_mode import ThinkingMode

T = TypeVar("T")

VERSION = 1
_MAX_FILE_BYTES = 1 << 20
_MAX_TUNED = 200
"""At most this many pairs of machine and model are remembered; the oldest go first."""
MOST_OPENED = 30
"""At most this many opened models are remembered; those opened longest ago go first."""
WEIGHTS = ("", "mmap", "huge")


@record
class TunedChoice:
    """Threads and memory modes chosen by tuning."""

    decode: int
    prefill: int
    """How many threads write, and how many read the prompt."""
    pinned: bool = False
    """Whether they are bound to CPUs."""
    weights: str = ""
    kv_type: str = ""
    """How weights, and keys and values, are kept in memory, by the settings; "" where that was not
    found out."""


@record
class TuningConditions:
    """The circumstances under which a choice proved best, which tell whether it may have become
    outdated."""

    kernels: str = ""
    """Names the compiled code; "" for unknown."""
    on_battery: bool = False


@record
class ProgramState:
    """Everything learned so far."""

    last_model: str | None = None
    """Absolute path of the model that was opened last."""
    tuned_threads: Mapping[str, TunedChoice] = field(default_factory=dict)
    """By machine and model, as the tuner names them."""
    theme: str | None = None
    """The theme that was chosen last on the screen."""
    tuned_when: Mapping[str, TuningConditions] = field(default_factory=dict)
    """Under the same names; choices made by hand were not measured."""
    thinking: Mapping[str, str] = field(default_factory=dict)
    """How much each model shall think, by the path of its file; models that think as they do by
    themselves are left out."""

    generation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Generation parameters that were chosen for a model and kept, by the path of its file."""

    opened_models: tuple[str, ...] = ()
    """Absolute paths of models that were opened, the last one last."""


def load_state() -> tuple[ProgramState, str | None]:
    """Return what was learned, and a line of notice where a file was there but could not be
    used."""
    try:
        content = _file().load()
        return _parse(content) if content else ProgramState(), None
    except FileNotFoundError:
        return ProgramState(), None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return (
            ProgramState(),
            f"{paths.state_file()}: {reason}; going on without what was learned earlier",
        )


def save_state(state: ProgramState) -> str | None:
    """Replace the file on disk, mode 0600 in a directory of mode 0700; return a line where nothing
    was saved."""
    path = paths.state_file()
    if path is None:
        return "no directory for the program's state is writable: nothing is remembered"
    try:
        _file().save(**dataclasses.asdict(state))
    except NewerFileError as error:
        return f"{path}: {error}: left as it is"
    except OSError as error:
        return f"{path}: {error.strerror}: nothing is remembered"
    return None


def remember_model(model_path: Path | str) -> str | None:
    """Note that a model was opened, which makes it the last one; returns a line where that
    failed."""
    path = os.path.abspath(model_path)
    others = [one for one in load_state()[0].opened_models if one != path]
    return _note(last_model=path, opened_models=(*others, path)[-MOST_OPENED:])


def remember_opened_model(model_path: Path | str) -> str | None:
    """Note that a model was opened by a command that begins no chat; returns a line where that
    failed."""
    path = os.path.abspath(model_path)
    opened = load_state()[0].opened_models
    if path in opened:
        return None
    return _note(opened_models=(*opened, path)[-MOST_OPENED:])


def remember_theme(name: str) -> str | None:
    """Note which theme was chosen; returns a line where that failed."""
    return _note(theme=name)


def remember_thinking(model_key: str, mode: str) -> str | None:
    """Note how much a model shall think, or forget it where it is left to the model; returns a line
    on failure."""
    if ThinkingMode.parse(mode) != ThinkingMode():
        kept = mode
    else:
        kept = None
    return _note(thinking=_with(load_state()[0].thinking, model_key, kept))


def remember_generation(model_key: str, chosen: Mapping[str, float]) -> str | None:
    """Note generation parameters for a model, or forget them where none are chosen; returns a line
    on failure."""
    return _note(generation=_with(load_state()[0].generation, model_key, dict(chosen) or None))


def remember_tuned(
    key: str,
    choice: TunedChoice | None,
    measured: TuningConditions | None = None,
    without: str = "",
) -> str | None:
    """Note what was chosen for one machine and model, or forget it, as ``without``; return a line
    where that failed."""
    state, _ = load_state()
    kept = _with(_with(state.tuned_threads, without), key, choice)
    when = _with(_with(state.tuned_when, without), key, measured if choice is not None else None)
    return _note(
        tuned_threads=kept, tuned_when={name: value for name, value in when.items() if name in kept}
    )


def _note(**learned: Any) -> str | None:
    return save_state(dataclasses.replace(load_state()[0], **learned))


def _with(kept: Mapping[str, T], key: str, value: T | None = None) -> dict[str, T]:
    """Return what is kept, with this value in place of the key's, or without it; the oldest go
    where it is too much."""
    others = [(name, one) for name, one in kept.items() if name != key]
    return dict(others if value is None else [*others, (key, value)][-_MAX_TUNED:])


def _file() -> JsonFile:
    return JsonFile(paths.state_file(), VERSION, _MAX_FILE_BYTES)


def _parse(content: dict[str, Any]) -> ProgramState:
    try:
        state: ProgramState = checked(
            ProgramState, {**content, "generation": _settings_of(content.get("generation"))}
        )
        for mode in state.thinking.values():
            ThinkingMode.parse(mode)
    except ValueError:
        raise DamagedFileError("not a state file") from None
    is_sound = all(map(_is_choice, state.tuned_threads.values()))
    if not is_sound or not all(
        map(_is_path, [*filter(None, [state.last_model]), *state.opened_models])
    ):
        raise DamagedFileError("not a state file")
    return dataclasses.replace(state, opened_models=state.opened_models[-MOST_OPENED:])


def _settings_of(value: object) -> dict[str, dict[str, Any]]:
    """Keep the sampling settings that are known and within their limits; a later version may have
    written others."""
    kept: dict[str, dict[str, Any]] = {}
    for key, chosen in value.items() if isinstance(value, dict) else ():
        for name, number in chosen.items() if isinstance(chosen, dict) else ():
            with suppress(SettingsError, KeyError, StopIteration):
                override(built_in_settings(), f"sampling.{name}", number, name)
                kept.setdefault(key, {})[name] = number
    return kept


def _is_path(text: str) -> bool:
    return "\0" not in text and os.path.isabs(text)


def _is_choice(choice: TunedChoice) -> bool:
    are_counts = all(1 <= one <= MOST_THREADS for one in (choice.decode, choice.prefill))
    return are_counts and choice.weights in WEIGHTS and choice.kv_type in ("", *KV_TYPES)
