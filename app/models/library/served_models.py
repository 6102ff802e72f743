"""Models of a server as entries of the model list."""

from __future__ import annotations

from pathlib import Path

from app.backend.remote.exchange import Exchange
from app.backend.remote.keys import find_key
from app.backend.remote.listing import list_server_models
from app.models.library.listing import ModelEntry
from app.program.remote_model import RemoteModel, server_address
from app.text.clean_text import clean_line


def served_models(server: str) -> list[ModelEntry]:
    """Ask a server for its models.

    Raises Refusal: it does not answer, or its key is not valid.
    """
    remote = RemoteModel(server_address(server))
    return [
        ModelEntry(
            Path(),
            clean_line(listed_model.name, 60),
            remote.host,
            n_parts=0,
            context_length=listed_model.n_ctx,
            served=RemoteModel(remote.server, listed_model.name),
        )
        for listed_model in list_server_models(Exchange(remote, find_key(remote.host)))
    ]
