"""Advice for those whose model cannot see: a model that sees and fits this machine."""

from __future__ import annotations

from app.models.library.known_models import offers
from app.models.library.listing import list_models, make_lister
from app.models.library.model_files import places
from app.models.library.speed import ESTIMATE
from app.program.settings import Settings
from app.text import figures


def seeing_model_line(settings: Settings, get_key: str, models_key: str) -> str:
    """Return a sentence about a model that sees: the largest one on this machine, else the first
    one to download; "" if none fits.

    Args:
        get_key: key or command of the chat for downloading.
        models_key: key or command for the model list.
    """
    lister = make_lister(settings)
    here = list_models(places(settings.model_directories), lister)
    fitting = [
        entry
        for entry in here
        if entry.can_open and entry.sees and entry.outlook and entry.outlook.verdict != "no"
    ]
    if fitting:
        best = max(fitting, key=lambda entry: entry.parameters)
        return f"{best.title} can, and is on this machine: {models_key} opens it"
    offered = [entry for entry in offers(lister, here) if entry.sees]
    if not offered:
        return ""
    size = f"{ESTIMATE}{figures.size(offered[0].download_bytes)}"
    return f"{offered[0].title} can, and fits this machine ({size}): {get_key} downloads it"
