"""Imports Textual without what the first frame does not show: its command palette and TLS, a tenth of a start.

Textual 8.2 imports its palette, and with that lists, trees and inputs, together with the application. Remove when it
does not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_PALETTE = "textual.command"
_PALETTE_NAMES = ("CommandListItem", "CommandPalette", "DiscoveryHit", "Hit", "Hits", "Provider", "SimpleProvider")


def import_textual() -> None:
    """Import what an application is made of; palette and https import the rest later.

    What is imported already stays. Textual's own theme picker and search for commands, unused here, go without.
    """
    if "textual.app" not in sys.modules:
        palette = ModuleType(_PALETTE)
        vars(palette).update({name: type(name, (), {}) for name in _PALETTE_NAMES})
        with _left_out("ssl", None), _left_out(_PALETTE, palette):
            import_module("textual.app")


@contextmanager
def _left_out(name: str, instead: ModuleType | None) -> Iterator[None]:
    """Put something in a module's place for a while; None makes its import fail, as asyncio takes from ssl."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = instead  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
