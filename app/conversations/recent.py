"""The conversation used last with each model: one small file, so that a start need not read all of them.

Uses are counted, not timed: a clock that jumps changes nothing. Losing the file costs a look at the list.
"""

from __future__ import annotations

import os
from dataclasses import field
from pathlib import Path

from app.conversations.store import Store
from app.program.remote_model import ModelPlace, is_remote
from app.program.small_file import JsonFile
from app.text.record import record

FILE_NAME = "recent.json"
VERSION = 1
_MOST_FILE_BYTES = 1 << 20
_MOST_MODELS = 200
_LARGEST = 1 << 53


@record
class Recent:
    """Content of the file: the order of the last use, and the last conversation by model."""

    order: int = 0
    last: dict[str, str] = field(default_factory=dict)


def model_key(path: ModelPlace | str) -> str:
    """Return how a model's file is named here; all models of a server are one."""
    return str(path).partition("#")[0] if is_remote(path) else os.path.realpath(str(path))


def _file(root: Path) -> JsonFile:
    return JsonFile(root / FILE_NAME, VERSION, _MOST_FILE_BYTES)


def read_recent(root: Path) -> Recent | None:
    """Return what the file says; None where it says nothing that can be used."""
    values = _file(root).read()
    order, last = values.get("order"), values.get("last")
    if type(order) is not int or not 0 <= order <= _LARGEST or not isinstance(last, dict):
        return None
    return Recent(order, last) if all(isinstance(one, str) for one in last.values()) else None


def note_use(store: Store, conversation_id: str, model_path: str) -> int:
    """Count one more use of a conversation, "" for one that is not on disk yet, and return its order."""
    root = store.root
    recent = (read_recent(root) if root is not None else None) or Recent(store.next_order())
    order = recent.order + 1
    if root is not None:
        others = [(path, one) for path, one in recent.last.items() if path != model_path]
        newest = [(model_path, conversation_id)] if conversation_id else []
        _file(root).write(order=order, last=dict([*others, *newest][-_MOST_MODELS:]))
    return order


def last_used(store: Store, model_path: str) -> str | None:
    """Return the conversation that was used last with a model; None if none exists."""
    recent = read_recent(store.root) if store.root is not None else None
    known = recent.last.get(model_path) if recent is not None else None
    entry = store.entry(known) if known else None
    if entry is not None and not entry.trouble and entry.summary.n_messages:
        return entry.id
    return store.newest(model_path)
