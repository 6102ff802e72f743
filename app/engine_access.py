"""Where the commands and the line mode meet the engine; besides the screens' bridge the only importer of ``engine``.

Everything is imported on use: numba and numpy must not cost a start that ends before a model opens. Tests replace
these functions by those of a scripted engine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.settings import Settings

if TYPE_CHECKING:
    from app.doctor.examine import Examination
    from engine import Model, Sampling, Session
    from engine.loader import Checked

Report = Callable[[Any], None]


def validate_model(path: Path | str) -> Checked:
    """Check the whole file without numba: ``Checked(gguf, config, tokenizer, weights)``.

    Raises:
        EngineError: the file cannot be used; the message is one line.
    """
    from engine import loader

    return loader.validate(path)


def glance_at_model(path: Path | str) -> None:
    """Check in a millisecond that there is a GGUF file; opening it checks the rest.

    Raises:
        EngineError: there is none; the message is one line.
    """
    from engine import magic

    magic.glance(path)


def open_model(settings: Settings, path: Path | str, progress: Report | None = None) -> Model:
    """Open a model with the threads and the memory mode of the settings; compiles kernels on first use.

    Raises:
        EngineError: the model cannot be used; the message is one line.
    """
    from engine import Model

    return Model.open(
        path,
        threads=settings.threads or None,
        weights=settings.weights,
        prefill_threads=settings.prefill_threads or None,
        progress=progress,
    )


def make_sampling(settings: Settings) -> Sampling:
    """Return the engine's sampling parameters for the settings."""
    from engine import Sampling

    chosen = settings.sampling
    return Sampling(
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        min_p=chosen.min_p,
        repeat_penalty=chosen.repeat_penalty,
        repeat_window=chosen.repeat_window,
        seed=None if chosen.seed < 0 else chosen.seed,
    )


def greedy_sampling() -> Sampling:
    """Return sampling that always takes the likeliest token."""
    from engine import Sampling

    return Sampling.greedy()


def check_kernels(model: Model) -> None:
    """Compare the kernels that the model uses with their references.

    Raises:
        EngineError: a kernel computes something else on this machine.
    """
    from engine.check import check_model

    check_model(model)


def has_chat_template(model: Model) -> bool:
    """Whether the file brings a template that works: without one it is hardly a chat model."""
    return model.chat_template.source is not None and model.chat_template.notice is None


def cpu_level() -> str:
    """Return the name of the instruction level that the kernels are compiled for."""
    from engine.simd.level import LEVEL

    return str(LEVEL)


def examine_machine(
    settings: Settings, model: Model | None, session: Session | None, kv_type: str, progress: Report
) -> Examination:
    """Measure for the doctor, between two turns of a chat."""
    from app.doctor.examine import examine
    from engine.fit import needs_of_file

    if model is None:
        return examine(settings.threads, settings.prefill_threads, progress=progress)
    n_ctx = session.n_ctx if session is not None else None
    needs = needs_of_file(model.path, kv_type)
    return examine(model.threads, model.prefill_threads, needs, n_ctx, progress, model.crew)
