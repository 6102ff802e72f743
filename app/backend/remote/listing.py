"""Models of a server, in the various formats in which servers list them."""

from __future__ import annotations

from typing import Any

from app.backend.remote.exchange import Exchange
from app.backend.remote.reply_chunks import count_of, text_of
from app.program.web import table_in
from app.program.web_refusals import DownloadError
from app.text.record import record

_MAX_MODELS = 1000
_MAX_NAME_CHARS = 200
_CONTEXT_FIELDS = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "n_ctx",
    "n_ctx_train",
)


@record
class ServerModel:
    """A model of a server."""

    name: str
    n_ctx: int = 0
    """Tokens of its context; 0 if unknown."""


def list_server_models(exchange: Exchange) -> list[ServerModel]:
    """Return the models of a server.

    Raises:
        DownloadError: The server gives no valid answer.
    """
    answer = exchange.fetch("/models")
    entries = answer
    if isinstance(answer, dict):
        # Ollama's own list is called "models". A server without models may send null.
        lists = [answer[name] for name in ("data", "models") if isinstance(answer.get(name), list)]
        entries = lists[0] if lists else None
        if not lists and "data" in answer and answer["data"] is None:
            entries = []
    if not isinstance(entries, list):
        raise DownloadError(
            f"{exchange.host}: does not list models as the API does: is the address right?"
        )

    models = [_parse_entry(entry) for entry in entries[:_MAX_MODELS]]
    return list({model.name: model for model in models if model.name}.values())


def _parse_entry(entry: Any) -> ServerModel:
    if isinstance(entry, str):
        entry = {"id": entry}
    elif not isinstance(entry, dict):
        entry = {}

    names = [text_of(entry.get(field)) for field in ("id", "model", "name")]
    name = next(filter(None, names), "")
    if len(name) > _MAX_NAME_CHARS or not name.isprintable():
        name = ""

    sizes = [
        count_of(fields.get(name))
        for fields in (entry, table_in(entry, "meta"))
        for name in _CONTEXT_FIELDS
    ]
    return ServerModel(name, next(filter(None, sizes), 0))
