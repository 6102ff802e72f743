"""The part of the examination that needs the engine: kernels, measured rates, needs of the model.

It runs in the thread that owns the engine, and does not raise if the engine cannot run.
"""

from dataclasses import replace

from app.machine.sensors.reply_history import ReplyHistory
from app.models.library import advice
from app.models.library.advice import Suggestion
from app.models.library.measure import (
    COMMON_TYPE,
    EngineReadings,
    Report,
    measure,
    memory_for_models,
)
from app.models.library.rates import rates_or_typical, usual_threads
from app.models.library.speed import ModelSpeed, speed_of
from app.program import paths
from app.program.settings import Settings
from app.text.record import record
from engine import Model, Session
from engine.measure import fit as fitting


@record
class Examination:
    """Results of the engine's measurements."""

    engine: EngineReadings
    rates: fitting.MachineRates
    memory: fitting.MachineMemory
    """Memory for models. Memory of this process counts as available."""
    needs: fitting.ModelNeeds | None
    fit: fitting.Fit | None
    speed: ModelSpeed | None
    """Usual or estimated speed of the model; None without a model."""
    suggestions: tuple[Suggestion, ...]
    kv_type: str = "f16"


def examine(
    settings: Settings,
    needs: fitting.ModelNeeds | None = None,
    n_ctx: int | None = None,
    progress: Report | None = None,
    model: Model | None = None,
) -> Examination:
    """Measure the machine, and compare a model's needs with it.

    Args:
        n_ctx: context in tokens; None for the engine's choice.
        model: the loaded model, whose threads measure; None to use temporary ones.
    """
    threads = settings.threads, settings.prefill_threads
    crew = None
    if model is not None:
        threads = model.threads, model.prefill_threads
        crew = model.crew
    quants = [COMMON_TYPE, *(needs.products if needs else ())]
    readings, _ = measure(*threads, quants, progress, crew)
    # the same rates as in the list of models
    rates = rates_or_typical(usual_threads(settings))
    memory = memory_for_models()
    fit = fitting.fit(needs, memory, rates, n_ctx) if needs else None
    speed = None
    if needs is not None and fit is not None:
        speed = speed_of(needs, fit, ReplyHistory(paths.speeds_file()))
    return Examination(
        engine=readings,
        rates=rates,
        memory=memory,
        needs=needs,
        fit=fit,
        speed=speed,
        suggestions=tuple(advice.suggestions(memory, rates)),
        kv_type=settings.kv_type_or_default,
    )


def examine_machine(
    settings: Settings, model: Model | None, session: Session | None, kv_type: str, progress: Report
) -> Examination:
    """Measure for the doctor between two turns of a chat."""
    if model is None:
        return examine(settings, progress=progress)
    if session is not None:
        n_ctx = session.n_ctx
    else:
        n_ctx = None
    needs = fitting.needs_of_file(model.path, kv_type)
    if model.pictures.encoder is not None:
        needs = replace(needs, encoder_bytes=model.pictures.encoder.needed_bytes)
    return examine(settings, needs, n_ctx, progress, model)
