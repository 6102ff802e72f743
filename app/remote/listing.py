"""The models of a server as rows of the list of models."""

from __future__ import annotations

from pathlib import Path

from app.library.listing import ModelEntry
from app.program.remote_model import RemoteModel, server_address
from app.remote.exchange import Exchange, find_key
from app.text.clean_text import clean_line


def served_models(server: str) -> list[ModelEntry]:
    """Ask a server which models it computes. Raises Refusal: it does not say, or its key cannot be one."""
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
        for one in Exchange(asked, find_key(asked.host)).models()
    ]
