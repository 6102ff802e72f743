"""Access to the engine: functions that apply the settings to its public names.

They import the engine when they are called, so that a program that opens no model does not pay for
numba and numpy. Tests replace them by a scripted engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.backend.local.saved_states import StateFiles
from app.conversations.store import model_key
from app.machine.sensors.low_power import is_on_battery
from app.machine.tuning import saved_tuning as tuned
from app.machine.tuning.saved_tuning import SavedTuning, TuningPlace, recall, tuning_keys
from app.program import state
from app.program.paths import expanded
from app.program.remote_model import ModelPlace
from app.program.settings import AUTO, NO_DRAFTS, Settings
from app.program.state import TunedChoice, TuningConditions
from app.session.adapters import split_scale
from app.text.clean_text import clean_line
from app.text.guesses import PREDICTOR, guess_kinds
from app.text.record import record

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.loader import CheckedModelFile
    from engine.tuning.lookahead_trials import Lookahead
    from engine.tuning.report import TuningReport
    from engine.tuning.sweep import Sweep

Report = Callable[[Any], None]


@record
class ReplayedGuesses:
    """Guesses during the replay of a text."""

    tried: int = 0
    right: int = 0


def validate_model(path: Path | str) -> CheckedModelFile:
    """Check a whole file without numba.

    Raises EngineError: the file cannot be used; the message is one line.
    """
    from engine import loader

    return loader.validate(path)


def check_model(path: Path | str) -> None:
    """Check a whole file and close it.

    Raises EngineError: the file cannot be used; the message is one line.
    """
    validate_model(path).gguf.close()


def glance_at_model(path: Path | str) -> None:
    """Check in a millisecond whether a file is GGUF; opening it checks the rest.

    Raises EngineError: the file is not GGUF.
    """
    from engine import glance

    glance(path)


def open_model(settings: Settings, path: Path | str, progress: Report | None = None) -> Model:
    """Open a model with the threads and memory mode of the settings, or those saved for it here.

    Compiles kernels on first use.

    Raises EngineError: the model cannot be used; the message is one line.
    """
    from engine import Model
    from engine.sampling.guessing import GuessKind

    model = Model.open(
        path,
        threads=settings.threads or None,
        weights=settings.weights_or_default,
        prefill_threads=settings.prefill_threads or None,
        pinned=settings.pin_threads == "on",
        has_predictor=PREDICTOR in guess_kinds(settings.guess_ahead),
        assistant=_assistant_of(settings, path),
        mmproj=_mmproj_of(settings),
        progress=progress,
    )
    model.checkpoint_bytes = settings.checkpoints_mb * 1_000_000
    model.rope_scaling = settings.rope_scaling
    model.guess_kinds = [GuessKind(kind) for kind in guess_kinds(settings.guess_ahead)]
    try:
        choice = recall_tuned(model).choice
        if choice is not None:
            use_tuned(model, choice, settings, progress)
    except BaseException:
        model.close()
        raise
    return model


def _assistant_of(settings: Settings, path: Path | str) -> Path | None:
    """Return the file of the small model that guesses for a model; None for none."""
    if PREDICTOR not in guess_kinds(settings.guess_ahead) or settings.draft_model in NO_DRAFTS:
        return None
    if settings.draft_model == AUTO:
        return assistant_next_to(path)
    return expanded(settings.draft_model)


def assistant_next_to(path: Path | str) -> Path | None:
    """Return the file in a model's folder with a small model that guesses for it."""
    from engine.assistant import assistant_next_to

    return assistant_next_to(path)


def replay(
    session: Session,
    ids: Sequence[int],
    kinds: Collection[str],
    on_logits: Callable[[Any], object] | None = None,
) -> ReplayedGuesses:
    """Feed tokens as a reply feeds them.

    Args:
        kinds: names of the kinds of guesses to use.
        on_logits: called with the logits after each token.
    """
    from engine.measure.replay import replay
    from engine.sampling.guessing import GuessKind

    replay(session, ids, bool(kinds), [GuessKind(kind) for kind in kinds], on_logits)
    tally = session.guess_tally
    return ReplayedGuesses(sum(tally.n_tried.values()), sum(tally.n_right.values()))


def _mmproj_of(settings: Settings) -> str | None:
    """Return the mmproj file of the settings, AUTO to look for one, or None for none."""
    if settings.pictures.mmproj == "off":
        return None
    return settings.pictures.mmproj or AUTO


def use_adapters(model: Model, adapters: Sequence[str]) -> None:
    """Replace the adapters of a model.

    Raises EngineError: an adapter does not suit the model.
    """
    model.use_adapters([split_scale(name) for name in adapters])


def use_tuned(
    model: Model, choice: TunedChoice, settings: Settings, progress: Report | None = None
) -> None:
    """Use the saved tuning of a model where the settings say "auto" and memory has room."""
    from engine.errors import MemoryPlanError

    if not (settings.threads or settings.prefill_threads):
        most = model.most_threads
        model.set_threads(min(choice.decode, most), min(choice.prefill, most))
    if settings.pin_threads == AUTO:
        model.set_pinned(choice.pinned)
    if settings.weights == AUTO and choice.weights:
        # Without room the mapped file is used; a screen shows which one is in use.
        with suppress(MemoryPlanError):
            model.use_weights(choice.weights, progress)


def kv_type_of(settings: Settings, model: Model) -> str:
    """Return the KV type of the settings, or the one saved for the model here; AUTO if there is
    none."""
    return tuned.kv_type_of(settings.kv_type, recall_tuned(model).choice)


def recall_tuned(model: Model) -> SavedTuning:
    """Return the tuning saved for this machine, model and power source, and doubts about it."""
    saved = state.load_state()[0]
    if not saved.tuned_threads:
        return SavedTuning()
    return recall(saved, _place(model))


def remember_tuned(
    model: Model, choice: TunedChoice | None, measured: TuningConditions | None = None
) -> str | None:
    """Save a tuning choice for this machine and model, or delete it; return a line if that
    fails."""
    key, without = tuning_keys(_place(model), measured)
    return state.remember_tuned(key, choice, measured, without=without)


def recall_thinking(settings: Settings, path: ModelPlace) -> str:
    """Return the thinking mode of the settings, or the one chosen for a model."""
    if settings.thinking != AUTO:
        return settings.thinking
    return state.load_state()[0].thinking.get(model_key(path), AUTO)


def kernels_version() -> str:
    """Return the version of the compiled code."""
    from engine.machine.code import VERSION

    return VERSION


def most_threads() -> int:
    """Return the number of CPUs that this process may use."""
    from engine.machine import host

    return host.cores().most_threads


def tuning_key(model: Model) -> str:
    """Return the key of this machine, model and power source."""
    place = _place(model)
    return place.key(place.on_battery)


def _place(model: Model) -> TuningPlace:
    from engine.machine import host

    name = clean_line(model.name, 80)
    machine = f"{clean_line(host.cores().identity, 160)}, {cpu_level()}"
    model_name = f"{name}, {clean_line(model.quantization, 12)}, {model.weights_bytes} bytes"
    return TuningPlace(machine, model_name, kernels_version(), is_on_battery())


def try_lookahead(
    model: Model, session: Session, is_unwanted: Callable[[], bool], again: bool
) -> Mapping[str, Lookahead]:
    """Find the best memory prefetch of decode, if it is not known.

    Raises EngineError: the search was cancelled.
    """
    from engine.tuning.lookahead_trials import try_lookahead

    return try_lookahead(model, session, is_unwanted, again)


def make_sweep(
    model: Model,
    session: Session,
    clock: Callable[[], float],
    may_pin: bool,
    parts: Sequence[str],
    budget_s: float | None = None,
    earlier: TuningReport | None = None,
) -> Sweep:
    """Return a search for the best settings after the tokens of the session.

    Args:
        may_pin: whether pinned threads may be tried.
        earlier: report that the search adds to; None if there is none.
    """
    from engine.machine import host
    from engine.tuning.sweep import Sweep
    from engine.tuning.trials import SessionTrials

    trials = SessionTrials(model, session, clock)
    trials.can_pin = trials.can_pin and may_pin
    return Sweep(trials, host.cores(), budget_s, clock, parts, earlier)


def state_files(
    settings: Settings, may_read_prefix: Callable[[], bool] = bool
) -> StateFiles | None:
    """Return functions that save the state of the KV cache; None if it is not saved.

    Args:
        may_read_prefix: returns whether system prompts may be read early.
    """
    quota_bytes = settings.kv_states_quota_bytes
    if not quota_bytes:
        return None
    from engine import saved_state

    return StateFiles(
        restore=saved_state.restore_state,
        restorable=saved_state.restorable,
        names=saved_state.saved_names,
        tokens_after=saved_state.tokens_after,
        writer=lambda session, directory, on_segment: saved_state.StateWriter(
            session, directory, quota_bytes, on_segment
        ),
        may_read_prefix=may_read_prefix,
    )


def check_kernels(model: Model) -> None:
    """Compare the kernels of a model with their references.

    Raises EngineError: a kernel differs.
    """
    from engine.measure.check import check_model

    check_model(model)


def cpu_level() -> str:
    """Return the name of the CPU level that the kernels are compiled for."""
    from engine import LEVEL

    return str(LEVEL)
