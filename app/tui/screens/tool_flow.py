"""Tools in the chat: each call of a reply is asked about, what comes of it is shown, and the model goes on from it."""

from __future__ import annotations

from collections.abc import Callable

from app.chat.events import GenerationFinished, ModelLoaded, ToolsAnswered, ToolsTold
from app.chat.tools import HOW_TO, MOST_ROUNDS, folded
from app.conversations.conversation import ChatMessage, Conversation
from app.tui.screens.chat_parts import ChatParts
from app.tui.screens.surroundings import make_screen
from engine.prompt.tools.calls import ToolCall


class ToolFlow:
    """Lets nothing run without a yes of the user; ``ask_next`` asks what waits where the calls are given up."""

    def __init__(self, parts: ChatParts, ask_next: Callable[[], None]) -> None:
        self._screen, self._turns, self._keymap, self._bridge = parts.screen, parts.turns, parts.keymap, parts.bridge
        self._transcript, self._views = parts.transcript, parts.views
        self._notes, self._note = parts.notes, parts.notes.note
        self._box, self._ask_next = parts.bridge.tools, ask_next
        self._agreed: set[tuple[str, str]] = set()
        """Servers and tools that are not asked about any more in ``_agreed_in``."""
        self._agreed_in: Conversation | None = None

    def obey(self, wanted: str = "") -> None:
        """List the servers, or turn them on or off."""
        box = self._box
        self._notes.tell(lambda: box.obey(wanted) if box is not None else HOW_TO)
        self._tell_of_server(self._turns.model)

    def note_model(self, event: ModelLoaded) -> None:
        """A model is open: one that a server computes gets no tools."""
        self._tell_of_server(event)

    def _tell_of_server(self, model: ModelLoaded | None) -> None:
        if model is not None and model.server and self._box is not None and self._box.is_on:
            self._note(f"tools are off while {model.server} computes the answers")

    def tell(self, event: ToolsTold) -> None:
        """Show a line about a server."""
        self._note(event.line, is_error=True)

    # ---- calls

    def ask_about_calls(self, _: GenerationFinished) -> None:
        """The reply has ended: if it ends with calls, ask about each."""
        reply = self._turns.last_message
        if reply is None or not self._turns.is_calling:
            return
        if self._turns.conversation.n_rounds >= MOST_ROUNDS:
            self._turns.note_unanswered()
            self._note(f"{MOST_ROUNDS} rounds of calls for one message are enough: this one is not run")
            self._ask_next()
        else:
            self._screen.run_worker(self._run_allowed(reply), group="tools")

    async def _run_allowed(self, reply: ChatMessage) -> None:
        allowed = [call.call_id for call in reply.calls if await self._may_run(call)]
        self._turns.run_calls(frozenset(allowed))

    async def _may_run(self, call: ToolCall) -> bool:
        server = self._box.owner_of(call.name) if self._box is not None else ""
        if not server:
            return True  # nothing runs: the model is told that there is no such tool
        if self._agreed_in is not self._turns.conversation:
            self._agreed_in, self._agreed = self._turns.conversation, set()
        if (server, call.name) in self._agreed:
            return True
        question = make_screen("question", server, call, self._keymap, self._bridge.now_s)
        answer = await self._screen.app.push_screen_wait(question)
        if answer == "always":
            self._agreed.add((server, call.name))
        return answer is not None

    def go_on(self, event: ToolsAnswered) -> None:
        """Show the results; the model reads them and answers."""
        reply = self._turns.last_message
        assert reply is not None
        line = folded(reply.calls, event.results)
        message = self._turns.note_results(event.results, line)
        self._views.ask(self._transcript.add_results(message.text, line))
