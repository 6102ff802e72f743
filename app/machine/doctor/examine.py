"""The part of the examination that needs the engine: what it compiles for, what it measures, what a
model needs.

Runs in the thread that owns the engine. Nothing here raises for a machine on which the engine
cannot run.
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
    """What this process holds already counts as available: it is what a model would use."""
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
    """Measure, and compare a model's needs with what was measured.

    Args:
        threads, prefill_threads: 0 for the engine's own choice.
        n_ctx: tokens that the model shall hold; None for the engine's choice.
        crew: the loaded model's; None hires one for the occasion.
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
    """Measure for the doctor, between two turns of a chat."""
    if model is None:
        return examine(settings.threads, settings.prefill_threads, progress=progress)
    if session is not None:
        n_ctx = session.n_ctx
    else:
        n_ctx = None
    needs = fitting.needs_of_file(model.path, kv_type)
    return examine(model.threads, model.prefill_threads, needs, n_ctx, progress, model.crew)
