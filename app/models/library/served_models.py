"""Models of a server, as entries of the list of models."""

from __future__ import annotations

from pathlib import Path

from app.backend.remote.exchange import Exchange
from app.backend.remote.keys import find_key
from app.backend.remote.listing import list_server_models
from app.models.library.listing import ModelEntry
from app.program.remote_model import RemoteModel, server_address
from app.text.clean_text import clean_line


def served_models(server: str) -> list[ModelEntry]:
    """Ask a server which models it computes.

    Raises Refusal: it does not say, or its key cannot be one.
    """
    asked = RemoteModel(server_address(server))
    return [
        ModelEntry(
            Path(),
            clean_line(one.name, 60),
            asked.host,
            n_parts=0,
            context_length=one.n_ctx,
            served=RemoteModel(asked.server, one.name),
        )
        for one in list_server_models(Exchange(asked, find_key(asked.host)))
    ]
