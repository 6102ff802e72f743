"""``jalopy quantize --budget``: types chosen by what this model is sensitive to. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from app.backend.local import opening as engine_access
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
"""Of the manual, that importance is collected on where no file of it is given."""


def types_within(
    path: str,
    most_bytes: int,
    importance: Mapping[str, Any],
    keep: Mapping[str, str],
    settings: Settings,
    progress: ProgressLine,
) -> tuple[dict[str, str], dict[str, Any]]:
    """Choose the types of a file's tensors, so that it has no more than this many bytes.

    Args:
        importance: as ``read_imatrix`` returns it; {} to collect it on the manual's text.
        keep: as of ``mixtures.mixture``.

    Returns:
        (types by name, importance).

    Raises:
        EngineError: the model cannot be used.
        Refusal: it cannot be so small.
    """

    def work() -> tuple[dict[str, str], dict[str, Any]]:
        with closing(engine_access.open_model(settings, path, progress.show_opening)) as model:
            return _choose(model, most_bytes, dict(importance), keep, progress)

    return start_work_thread().run(work)


def _choose(
    model: Model,
    most_bytes: int,
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
            for found in collect(session, chunks):
                progress.show(f"reading chunk {found.n_chunks} of {len(chunks)}")
            importance = found.means()
        budget = Budget(model, session, importance, keep)
        for done, total in budget.measure(chunks[0]):
            progress.show(f"measuring what the model is sensitive to: {done} of {total}")
        types = budget.types(most_bytes)
    if types is None:
        why = f"its smallest types take {size(budget.least_bytes)}, more than {size(most_bytes)}"
        raise Refusal(f"jalopy quantize: --budget: {why} (give more, or a smaller model)")
    return types, importance
