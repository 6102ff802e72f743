"""The part of the examination that needs the engine: kernels, measured rates, needs of the model.

It runs in the thread that owns the engine, and does not raise if the engine cannot run.
"""

from app.models.library import advice
from app.models.library.advice import Suggestion
from app.models.library.measure import (
    COMMON_TYPE,
    EngineReadings,
    Report,
    measure,
    memory_for_models,
)
from app.program.settings import Settings
from app.text.record import record
from engine import Crew, Model, Session
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
    suggestions: tuple[Suggestion, ...]


def examine(
    threads: int,
    prefill_threads: int,
    needs: fitting.ModelNeeds | None = None,
    n_ctx: int | None = None,
    progress: Report | None = None,
    crew: Crew | None = None,
) -> Examination:
    """Measure the machine, and compare a model's needs with it.

    Args:
        threads, prefill_threads: numbers of threads; 0 for the engine's choice.
        n_ctx: context in tokens; None for the engine's choice.
        crew: crew of the loaded model; None to use a temporary one.
    """
    quants = [COMMON_TYPE, *(needs.products if needs else ())]
    readings, rates = measure(threads, prefill_threads, quants, progress, crew)
    memory = memory_for_models()
    return Examination(
        engine=readings,
        rates=rates,
        memory=memory,
        needs=needs,
        fit=fitting.fit(needs, memory, rates, n_ctx) if needs else None,
        suggestions=tuple(advice.suggestions(memory, rates)),
    )


def examine_machine(
    settings: Settings, model: Model | None, session: Session | None, kv_type: str, progress: Report
) -> Examination:
    """Measure for the doctor between two turns of a chat."""
    if model is None:
        return examine(settings.threads, settings.prefill_threads, progress=progress)
    if session is not None:
        n_ctx = session.n_ctx
    else:
        n_ctx = None
    needs = fitting.needs_of_file(model.path, kv_type)
    return examine(model.threads, model.prefill_threads, needs, n_ctx, progress, model.crew)
