"""Which models a server has, in the shapes that servers list them."""

from __future__ import annotations

from typing import Any

from app.backend.remote.exchange import Exchange
from app.backend.remote.pieces import count_of, text_of
from app.program.web import table_in
from app.program.web_refusals import DownloadError
from app.text.record import record

_MOST_MODELS = 1000
_MOST_NAME_CHARS = 200
_CONTEXT_NAMES = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "n_ctx",
    "n_ctx_train",
)


@record
class ServerModel:
    """A model that a server names."""

    name: str
    n_ctx: int = 0
    """0 where it does not say so."""


def models_of(exchange: Exchange) -> list[ServerModel]:
    """Ask a server which models it has.

    Raises DownloadError: there is no answer that can be used.
    """
    answer = exchange.answer("/models")
    found = answer
    if isinstance(answer, dict):  # Ollama's own list is "models"; one without any has null
        found = next(
            (answer[name] for name in ("data", "models") if isinstance(answer.get(name), list)),
            None,
        )
        if found is None and "data" in answer and answer["data"] is None:
            found = []
    if not isinstance(found, list):
        raise DownloadError(
            f"{exchange.host}: does not list models as the API does: is the address right?"
        )
    listed = {one.name: one for one in map(_listed, found[:_MOST_MODELS]) if one.name}
    return list(listed.values())


def _listed(entry: Any) -> ServerModel:
    if isinstance(entry, str):
        entry = {"id": entry}
    elif not isinstance(entry, dict):
        entry = {}
    name = next(filter(None, (text_of(entry.get(key)) for key in ("id", "model", "name"))), "")
    holders = (entry, table_in(entry, "meta"))
    sizes = (count_of(holder.get(key)) for holder in holders for key in _CONTEXT_NAMES)
    is_name = 0 < len(name) <= _MOST_NAME_CHARS and name.isprintable()
    return ServerModel(name if is_name else "", next(filter(None, sizes), 0))
