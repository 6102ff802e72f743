"""Shows a reply, from its first word to its figures; asks about the calls of tools in it, and shows their results."""

from __future__ import annotations

from app.chat import events
from app.chat.tools import HOW_TO, MOST_ROUNDS, TOO_MANY_ROUNDS, folded
from app.conversations.conversation import ChatMessage, Conversation, Ending
from app.conversations.lines import AGAINST_LOOPS
from app.text import figures
from app.tui.screens.chat_parts import GOES_ON, ChatHelper, ChatParts
from app.tui.screens.message_actions import MessageEditing
from app.tui.screens.surroundings import make_screen
from app.tui.textual_hacks import tell_desktop
from app.tui.widgets.message_view import ReplyView, ToolView, UserView
from engine.prompt.tools.calls import ToolCall

LONG_REPLY_S = 20.0
"""Whoever waits for longer may look at something else meanwhile."""


class ReplyFlow(ChatHelper):
    """Listens to a turn."""

    def __init__(self, parts: ChatParts, editing: MessageEditing) -> None:
        super().__init__(parts)
        self._editing = editing
        self._focuses_stopped = False
        self._agreed: set[tuple[str, str]] = set()
        """Servers and tools that are not asked about any more in ``_agreed_in``."""
        self._agreed_in: Conversation | None = None

    def stop(self) -> None:
        """Stop the reply, whose text so far stays and gets the focus; or stop what else runs."""
        self._focuses_stopped = self._turns.is_answering
        self._turns.stop()

    def show_growth(
        self, event: events.TextGenerated | events.ThoughtGenerated | events.ThinkingFinished | events.ReplyReopened
    ) -> None:
        """Let the answer or the thinking grow, or fold that; a reply that goes on comes again from its beginning."""
        self._turns.growing.take(event)
        if isinstance(event, events.TextGenerated):
            self._views.growing_reply().body.append(event.text)
        elif isinstance(event, events.ThoughtGenerated):
            self._views.growing_reply().think(event.text)
        elif isinstance(event, events.ThinkingFinished):
            self._views.growing_reply().finish_thinking(self._turns.growing.thinking)
        self._turns.save_partial()  # written by the keeper before the screen is drawn

    def finish_reply(self, event: events.GenerationFinished) -> None:
        """Freeze the reply with its figures."""
        view = self._finish(self._turns.note_reply(event))
        is_long = event.figures.duration_s >= LONG_REPLY_S
        if self._around.settings.notify == "on" and is_long and not self._screen.app.app_focus:
            tell_desktop(self._screen.app)
        if event.ending is Ending.REPEATED:
            self._note(AGAINST_LOOPS)
        self.ask_next()
        if event.ending is Ending.STOPPED and self._focuses_stopped and not self._turns.is_busy:
            self._screen.call_after_refresh(self._focus.to_stopped, view)
        self._focuses_stopped = False

    def show_failure(self, event: events.GenerationFailed) -> None:
        """Say why there is no reply, or only half of one; the chat goes on."""
        if event.broken_off is not None:
            self._finish(self._turns.note_reply(event.broken_off))
            consequence = ""
        else:
            consequence = " (the conversation is as it was)" if self._leave_unanswered() else " (/regen asks again)"
        self._note(f"{event.reason}{consequence}", is_error=True)
        self.ask_next()

    def show_stop(self, _: events.PromptStopped) -> None:
        """Say that the question stays unanswered, or the conversation as it was."""
        if self._leave_unanswered():
            self._note("stopped before anything new came; the conversation is as it was")
        else:
            self._note("stopped before the reply began (/regen asks again; another message takes its place)")
        self.ask_next()

    def give_back(self, event: events.PromptRefused) -> None:
        """Return a message that does not fit to where it came from."""
        needed, n_ctx = figures.count(event.needed_tokens), figures.count(event.n_ctx)
        if isinstance(self._views.asked, ToolView):
            self._leave_unanswered()
            self._note(f"the tools' results need {needed} tokens; the context holds {n_ctx}", is_error=True)
            self.ask_next()
            return
        asked, edited = self._views.asked, self._views.edited_question
        text = self._turns.take_back()
        self._views.keep_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        else:
            if asked is not None:
                asked.mark("not sent")
            self._views.part()
            self._prompt.give_back(text)
        self._views.asked = None
        model = self._turns.model
        larger = ", or choose a larger context_size" if model is not None and model.context_may_grow else ""
        self._note(
            f"Not sent: this message alone, with the system prompt and room for a reply, needs {needed} tokens; "
            f"the context holds {n_ctx}. Shorten it{larger}.",
            is_error=True,
        )
        self.ask_next()

    def ask_next(self) -> None:
        """The engine may be free: ask what waits longest."""
        if self._turns.ask_next():
            asked = self._transcript.waiting.popleft()
            asked.mark("")
            self._views.ask(asked)
        self._drafting.note_free()

    def _finish(self, message: ChatMessage) -> ReplyView:
        self._editing.note_replied()
        view = self._views.growing_reply()
        view.finish(message)
        view.offer(GOES_ON if self._turns.can_continue else "")
        # When the last pass of its Markdown is done, and with it the number of widgets known.
        self._screen.call_after_refresh(self._transcript.slim)
        self._views.end()
        return view

    def _leave_unanswered(self) -> bool:
        """End a turn without a reply. Returns whether what the reply would have replaced is back."""
        edited = self._views.edited_question
        is_restored = self._turns.note_unanswered()
        self._views.keep_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        elif self._views.asked is not None and not is_restored:
            self._views.asked.mark("not answered")
        self._views.end()
        self._editing.edit_again()
        if is_restored and self._turns.can_continue and (replies := self._transcript.replies()):
            replies[-1].offer(GOES_ON)
        return is_restored

    def _take_edit_back(self, edited: UserView) -> None:
        self._transcript.drop([edited])
        if not self._editing.edit_again():
            self._prompt.give_back(edited.text)

    # ---- tools: nothing runs without a yes of the user

    def choose_tools(self, wanted: str = "") -> None:
        """List the servers, or turn them on or off."""
        box = self._bridge.tools
        with self._notes.telling_refusals():
            self._note(box.obey(wanted) if box is not None else HOW_TO)
        self.tell_of_server(self._turns.model)

    def tell_of_server(self, model: events.ModelLoaded | None) -> None:
        """Say where the results of tools go while a server computes the answers."""
        if model is not None and model.server and self._bridge.tools is not None and self._bridge.tools.is_on:
            self._note(f"what tools return goes to {model.server}, which computes the answers")

    def tell_of_tools(self, event: events.ToolsTold) -> None:
        """Show a line: in grey, unless it is about a server's fault."""
        self._note(event.line, is_error=event.is_fault)

    def ask_about_calls(self, _: events.GenerationFinished) -> None:
        """The reply has ended: if it ends with calls, ask about each."""
        reply = self._turns.last_message
        if reply is None or not self._turns.is_calling:
            return
        if self._turns.conversation.n_rounds >= MOST_ROUNDS:
            self._turns.note_unanswered()
            self._note(TOO_MANY_ROUNDS)
            self.ask_next()
        else:
            self._screen.run_worker(self._run_allowed(reply), group="tools")

    async def _run_allowed(self, reply: ChatMessage) -> None:
        allowed = [call.call_id for call in reply.calls if await self._may_run(call)]
        self._turns.run_calls(frozenset(allowed))

    async def _may_run(self, call: ToolCall) -> bool:
        box = self._bridge.tools
        if box is None or box.runs_always(call.name):
            return True
        server = box.owner_of(call.name)
        if self._agreed_in is not self._turns.conversation:
            self._agreed_in, self._agreed = self._turns.conversation, set()
        if (server, call.name) in self._agreed:
            return True
        question = make_screen("question", server, call, self._keymap, self._bridge.now_s)
        answer = await self._screen.app.push_screen_wait(question)
        if answer == "always":
            self._agreed.add((server, call.name))
        return answer is not None

    def show_results(self, event: events.ToolsAnswered) -> None:
        """Show the results; the model reads them and answers."""
        reply = self._turns.last_message
        assert reply is not None
        line = folded(reply.calls, event.results)
        message = self._turns.note_results(event.results, line)
        self._views.ask(self._transcript.add(ToolView(message.text, line)))
