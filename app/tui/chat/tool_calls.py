"""Calls of tools at the end of a reply: each runs only if the user agrees."""

from __future__ import annotations

from app.conversations.conversation import Conversation
from app.session import commands
from app.session.events import ModelLoaded
from app.session.tool_rounds import open_calls
from app.tools.toolbox import short_arguments
from app.tui.chat.core import ChatCore, TurnViews
from app.tui.widgets.call_question import CallQuestion
from app.tui.widgets.message_view import ToolView
from engine.prompt.tools.calls import ToolCall


class ToolCalls:
    """Asks the user about calls in the transcript, and shows their results."""

    def __init__(self, core: ChatCore, turn_views: TurnViews) -> None:
        self._core = core
        self._turn_views = turn_views
        self._agreed: frozenset[tuple[str, str]] = frozenset()
        """Servers and tools that the user is not asked about again in ``_agreed_in``."""
        self._agreed_in: Conversation | None = None
        self._view: ToolView | None = None
        """Calls of the last reply, until they have results; None if there are none."""

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

    # ---- a round of calls

    def begin_round(self) -> None:
        """Ask the user about each call of the last reply, and run those that may run."""
        if self._core.chat_session.is_calling:
            core = self._core
            question = CallQuestion(core.keymap, core.engine_thread.now_s)
            self._view = ToolView("", question=question)
            core.screen.run_worker(self._run_calls(self._view, question), group="tools")

    async def _run_calls(self, view: ToolView, question: CallQuestion) -> None:
        chat_session = self._core.chat_session
        await self._core.transcript.add_and_wait(view)
        self._core.transcript.fold_calls()
        lines: list[str] = []
        allowed: list[str] = []
        for call in open_calls(chat_session.conversation):
            view.show_calls("\n".join(lines))
            line = f"{call.name} {short_arguments(call)}"
            if await self._may_run(call, question):
                allowed.append(call.call_id)
                lines.append(line)
            else:
                lines.append(f"{line}: refused")
        view.show_calls("\n".join(lines))
        chat_session.run_calls(frozenset(allowed))

    async def _may_run(self, call: ToolCall, question: CallQuestion) -> bool:
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

        answer = await self._ask(server, call, question)
        if answer == "always":
            self._agreed |= {(server, call.name)}
        return answer is not None

    async def _ask(self, server: str, call: ToolCall, question: CallQuestion) -> str | None:
        """Ask about a call in the transcript. The focus stays in a prompt with text."""
        core = self._core
        core.edge.is_asking = True
        if core.screen.focused is core.prompt and not core.prompt.text:
            question.focus(scroll_visible=False)
        else:
            core.edge.hint(core.keymap.hint("chat.focus_older", "goes to the question of a tool"))
        core.edge.show_keys()
        try:
            return await question.ask(server, call)
        finally:
            core.edge.is_asking = False
            if core.screen.focused is question:
                core.focus_prompt()
            core.edge.hint()
            core.edge.show_keys()

    def refuse(self) -> bool:
        """Answer an open question with no; False if there is none."""
        if self._view is None or self._view.question is None or not self._core.edge.is_asking:
            return False
        self._view.question.answer(None)
        return True

    def show_results(self) -> None:
        """Show the results of tools, which the model reads and answers."""
        message = self._core.chat_session.last_message
        assert message is not None
        view = self._view or self._core.transcript.add(ToolView(""))
        self._view = None
        view.show_results(message)
        self._turn_views.begin(view)

    def end_round(self) -> None:
        """Mark the calls of a round that ended without results."""
        if self._view is not None:
            self._view.is_stopped = True
            self._view.show_footer("stopped")
            self._view = None
            self._core.transcript.fold_calls()
