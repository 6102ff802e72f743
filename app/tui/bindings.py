"""Textual bindings, made from the table of actions."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding, BindingType

from app.tui.actions import ACTIONS, NO_KEY


def bindings(scope: str) -> list[BindingType]:
    """Return bindings for all actions of a scope, even without keys, since users may add keys."""
    return [
        Binding(
            action.keys or NO_KEY,
            action.call,
            action.title,
            id=action_id,
            show=False,
            priority=action.priority,
        )
        for action_id, action in ACTIONS.items()
        if action.scope == scope
    ]


def scope_of(items: Iterable[BindingType]) -> str:
    """Return the scope of bindings that ``bindings`` made; empty for other bindings."""
    for binding in items:
        if isinstance(binding, Binding) and binding.id in ACTIONS:
            return binding.id.partition(".")[0]
    return ""
