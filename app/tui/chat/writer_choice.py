"""The model for a saved conversation that another model than the open one wrote."""

from __future__ import annotations

from asyncio import wrap_future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.locks import StoreError
from app.conversations.store import ConversationHead, Store, model_key
from app.program.background import in_background
from app.program.remote_model import is_remote
from app.program.settings import Settings
from app.text import figures
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    from app.session.events import ModelLoaded

_NAME_CHARS = 40


@record
class WriterChoice:
    """Choice between the model that wrote a conversation and the open one."""

    title: str
    writer: str
    writer_path: Path
    writer_cost: str
    """Sentence on what it costs to continue with the model that wrote the conversation."""
    open_model: str
    open_cost: str
    """The same for the open model."""


def other_writer(head: ConversationHead, model: ModelLoaded | None) -> Path | None:
    """Return the path of the model that wrote a conversation; its file may be gone.

    None if that model is open, is on a server, or is not known, and if no model is open.
    """
    path = head.model_path
    if model is None or not path or is_remote(path) or path == model_key(model.path):
        return None
    return Path(path)


async def weigh(
    store: Store,
    conversation_id: str,
    head: ConversationHead,
    writer_path: Path,
    model: ModelLoaded,
    settings: Settings,
) -> WriterChoice:
    """Estimate what each of the two models has to do before it goes on."""
    from app.models.library.listing import look_up  # the first frame does not need it

    measured = in_background(partial(_measure, store, conversation_id), "states")
    n_tokens, names = await wrap_future(measured)
    open_name = clean_line(model.name, 100)
    # Quantizations of a model have one name; the states are rather those of the last writer.
    writer_names = {name for name in names if f"{head.model} ".startswith(f"{name} ")}

    writer_cost = f"It loads {figures.size(_size_of(writer_path))}"
    if writer_names:
        writer_cost += " and goes on at once: its KV cache is on disk."
    else:
        outlook = await wrap_future(look_up(writer_path, settings))
        reading = reading_cost(n_tokens, outlook.prefill_tps if outlook else None)
        writer_cost += f" and reads {reading}."

    if is_remote(model.path):
        open_cost = f"The conversation is sent to {model.server}."
    elif open_name in names - writer_names:
        open_cost = "It goes on soon: a KV cache of it is on disk."
    else:
        outlook = await wrap_future(look_up(Path(model.path), settings))
        reading = reading_cost(n_tokens, outlook.prefill_tps if outlook else None)
        open_cost = f"It reads {reading}."
    return WriterChoice(
        _short_title(head.title),
        clean_line(head.model, _NAME_CHARS) or clean_line(writer_path.stem, _NAME_CHARS),
        writer_path,
        writer_cost,
        clean_line(model.title, _NAME_CHARS),
        open_cost,
    )


def reading_cost(n_tokens: int, prefill_tps: float | None) -> str:
    """Return how much a model reads, and how long that takes if it is known."""
    cost = f"about {figures.counted(n_tokens, 'token')}"
    if prefill_tps:
        cost += f", {figures.whole_seconds(n_tokens / prefill_tps)}"
    return cost


def _measure(store: Store, conversation_id: str) -> tuple[int, set[str]]:
    """Return the tokens of a conversation, and the names of models with a KV cache of it."""
    from app.conversations.state_files import model_name

    n_tokens = 0
    names = set[str]()
    with suppress(StoreError, OSError):
        n_tokens = store.n_tokens(conversation_id)
        segments = store.segments(conversation_id)
        names = {model_name(path.parent) for path in segments if path.exists()}
    return n_tokens, names


def _size_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _short_title(title: str) -> str:
    """Return a title for a question, cut between words where it can be."""
    line = clean_line(title, _NAME_CHARS)
    words, _, last_word = line.rpartition(" ")
    if last_word.endswith("…") and len(words) >= _NAME_CHARS // 2:
        return f"{words} …"
    return line
