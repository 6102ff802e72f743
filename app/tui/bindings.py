"""The table of actions as Textual's bindings."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding, BindingType

from app.tui.actions import ACTIONS, NO_KEY


def bindings(scope: str) -> list[BindingType]:
    """Return Textual's bindings for all actions of one scope; those without keys may be given
    some."""
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


def scope_of(some: Iterable[BindingType]) -> str:
    """Return the scope that ``bindings`` made these of; "" for others."""
    return next(
        (b.id.partition(".")[0] for b in some if isinstance(b, Binding) and b.id in ACTIONS), ""
    )
