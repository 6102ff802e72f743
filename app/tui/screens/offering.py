"""Finds what the typed command, name or path could become, and lists it above the prompt."""

from __future__ import annotations

from asyncio import wrap_future
from concurrent.futures import Future

from app.program.manual import topics
from app.program.personas import persona_names
from app.tui.completing import Names, Offered, offered_at_once, offered_paths
from app.tui.screens.chat_parts import ChatParts
from app.tui.widgets.suggestions import Suggestions


class Offering:
    """Listens to what is typed."""

    def __init__(self, parts: ChatParts) -> None:
        self._screen, self._prompt = parts.screen, parts.prompt
        self._prompt.show_offered = self._screen.query_one(Suggestions).show
        generation = parts.bridge.generation
        self._names: dict[str, Names] = {
            "theme": lambda: sorted(self._screen.app.available_themes),
            "persona": persona_names,
            "help": topics,
            "set": lambda: [*generation.names, "keep", "reset"] if generation is not None else [],
        }

    def offer(self) -> None:
        """List what the typed text could become; paths a moment later."""
        typed = self._prompt.typed
        self._prompt.offer(offered_at_once(typed, self._names))
        paths = offered_paths(typed)
        if paths is not None:  # each goes its way: one that was called off before it began would never be awaited
            self._screen.run_worker(self._offer_paths(typed, paths), group="paths")

    async def _offer_paths(self, typed: str, paths: Future[list[Offered]]) -> None:
        found = await wrap_future(paths)
        if self._prompt.typed == typed:
            self._prompt.offer(found)
