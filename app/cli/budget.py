"""``jalopy quantize --budget``: choose the type of each tensor by how sensitive the model is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from app.backend.local import engine_access
from app.backend.work_thread import start_work_thread
from app.cli.output import ProgressLine
from app.program import manual
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.figures import size

if TYPE_CHECKING:
    from engine import Model

MANUAL = "jalopy's manual"
N_CHUNK = 512
N_CHUNKS = 4
"""Chunks of the manual that importance is collected on without ``--imatrix``."""


def types_within(
    path: str,
    max_bytes: int,
    importance: Mapping[str, Any],
    keep: Mapping[str, str],
    settings: Settings,
    progress: ProgressLine,
) -> tuple[dict[str, str], dict[str, Any]]:
    """Choose the type of each tensor so that the file has at most ``max_bytes``.

    Args:
        importance: as ``read_imatrix`` returns it; {} to collect it on the manual's text.
        keep: types by pattern of tensor names, as for ``mixtures.mixture``.

    Returns:
        (types by tensor name, importance).

    Raises:
        EngineError: the model cannot be used.
        Refusal: the model does not fit into ``max_bytes``.
    """

    def choose() -> tuple[dict[str, str], dict[str, Any]]:
        with closing(engine_access.open_model(settings, path, progress.show_opening)) as model:
            return _choose(model, max_bytes, dict(importance), keep, progress)

    return start_work_thread().run(choose)


def _choose(
    model: Model,
    max_bytes: int,
    importance: dict[str, Any],
    keep: Mapping[str, str],
    progress: ProgressLine,
) -> tuple[dict[str, str], dict[str, Any]]:
    from engine.measure.budget import Budget
    from engine.measure.importance import collect
    from engine.measure.perplexity import chunks_of

    text = "\n\n".join(manual.page(topic) for topic in manual.topics())
    n_chunk = min(N_CHUNK, model.config.context_length)
    with closing(model.session(n_chunk, "f32")) as session:
        chunks = chunks_of(model.tokenizer.encode(text, special=False), n_chunk, model.tokenizer)[
            :N_CHUNKS
        ]
        if not importance:
            for imatrix in collect(session, chunks):
                progress.show(f"reading chunk {imatrix.n_chunks} of {len(chunks)}")
            importance = imatrix.means()
        budget = Budget(model, session, importance, keep)
        for done, total in budget.measure(chunks[0]):
            progress.show(f"measuring the model's sensitivity: {done} of {total}")
        types = budget.types(max_bytes)
    if types is None:
        raise Refusal(
            f"jalopy quantize: --budget: {size(max_bytes)} is too small, the smallest types take "
            f"{size(budget.least_bytes)} (raise the budget, or use a smaller model)"
        )
    return types, importance
