"""Calls of tools at the end of a reply: each runs only if the user agrees."""

from __future__ import annotations

from app.conversations.conversation import ChatMessage, Conversation
from app.session import commands
from app.session.events import ModelLoaded
from app.tools.toolbox import MOST_ROUNDS, TOO_MANY_ROUNDS
from app.tui.chat.core import ChatCore, TurnViews
from app.tui.screens import make_screen
from app.tui.widgets.message_view import ToolView
from engine.prompt.tools.calls import ToolCall


class ToolCalls:
    """Asks the user about calls, and shows their results."""

    def __init__(self, core: ChatCore, turn_views: TurnViews) -> None:
        self._core = core
        self._turn_views = turn_views
        self._agreed: frozenset[tuple[str, str]] = frozenset()
        """Servers and tools that the user is not asked about again in ``_agreed_in``."""
        self._agreed_in: Conversation | None = None

    def action_tools(self, argument: str = "") -> None:
        """List the servers of tools, or turn them on or off."""
        with self._core.refusals_said():
            self._core.say(commands.choose_tools(self._core.engine_thread, argument))
        self.say_where_results_go(self._core.chat_session.model)

    def say_where_results_go(self, model: ModelLoaded | None) -> None:
        """Say that results of tools go to a server, if one computes the replies."""
        tools = self._core.engine_thread.tools
        if model is not None and model.server and tools is not None and tools.is_on:
            self._core.say(f"Results of tools are sent to {model.server}, which writes the replies")

    def ask_about_calls(self) -> bool:
        """Ask the user about each call of the last reply; False if there are too many rounds."""
        chat_session = self._core.chat_session
        reply = chat_session.last_message
        if reply is None or not chat_session.is_calling:
            return True
        if chat_session.conversation.n_rounds >= MOST_ROUNDS:
            chat_session.end_without_reply()
            self._core.say(TOO_MANY_ROUNDS)
            return False
        self._core.screen.run_worker(self._run_agreed(reply), group="tools")
        return True

    async def _run_agreed(self, reply: ChatMessage) -> None:
        call_ids = [call.call_id for call in reply.calls if await self._may_run(call)]
        self._core.chat_session.run_calls(frozenset(call_ids))

    async def _may_run(self, call: ToolCall) -> bool:
        core = self._core
        tools = core.engine_thread.tools
        if tools is None or tools.runs_always(call.name):
            return True
        if self._agreed_in is not core.chat_session.conversation:
            self._agreed_in = core.chat_session.conversation
            self._agreed = frozenset()
        server = tools.owner_of(call.name)
        if (server, call.name) in self._agreed:
            return True

        question = make_screen("question", server, call, core.keymap, core.engine_thread.now_s)
        answer = await core.screen.app.push_screen_wait(question)
        if answer == "always":
            self._agreed |= {(server, call.name)}
        return answer is not None

    def show_results(self) -> None:
        """Show the results of tools, which the model reads and answers."""
        message = self._core.chat_session.last_message
        assert message is not None
        view = self._core.transcript.add(ToolView(message.text, message.folded))
        self._turn_views.begin(view)
