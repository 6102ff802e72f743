"""Every target by its name on the command line; a new one gets its line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tests.programs.fuzz.target import Target

TARGETS = {
    "gguf": "gguf_files",
    "template": "chat_templates",
    "database": "databases",
    "state": "states",
    "keys": "keys",
    "server": "servers",
    "form": "forms",
    "tools": "tool_servers",
    "export": "exports",
    "convert": "checkpoints",
    "documents": "documents",
    "file": "own_files",
    "requests": "requests",
    "pictures": "pictures",
}
"""Modules of the targets; each has a ``TARGET``."""


@cache
def load(name: str) -> Target:
    """Return a target; ``planted`` is for tests of the machinery alone. Others are not imported."""
    module = import_module(f"tests.programs.fuzz.{TARGETS.get(name, name)}")
    target: Target = module.TARGET
    return target
