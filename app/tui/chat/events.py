"""Events of the engine: fetched at a pace that the machine can afford, and shown in the chat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

from app.backend.status import Activity, EngineStatus
from app.conversations.conversation import Ending
from app.conversations.reply_lines import AGAINST_LOOPS
from app.machine.sensors.page_faults import DiskRate
from app.models.downloads.background import BackgroundDownload
from app.session import events
from app.session.chat_session import TurnOutcome
from app.session.events import Event
from app.session.line_of import empty_reply_line
from app.text import figures
from app.text.glyphs import choose_glyphs
from app.tui.chat.answer_choice import AnswerChoice
from app.tui.chat.compacting import CompactionPart
from app.tui.chat.composer import Composer
from app.tui.chat.conversation_flow import ConversationFlow
from app.tui.chat.conversation_upkeep import ConversationUpkeep
from app.tui.chat.core import ANSWERS_OFFER, CONTINUE_OFFER, ChatCore, TurnViews
from app.tui.chat.draft import draft_of
from app.tui.chat.editing import MessageEditing
from app.tui.chat.message_actions import MessageActions
from app.tui.chat.messages import EngineReported
from app.tui.chat.model_panel import ModelPanel
from app.tui.chat.tool_calls import ToolCalls
from app.tui.chat.welcome import Welcome
from app.tui.speed.watch import PerformanceWatch, TypingRhythm
from app.tui.textual_hacks import notify_desktop
from app.tui.widgets.message_view import ReplyView, ToolView, UserView
from app.tui.widgets.status_line import ActivityLine, StatusLine

DRAIN_PERIOD_S = 0.1
"""Seconds between two looks for events."""
STATUS_EVERY = 2
"""While a reply is written, the status line changes with every second drain."""
REST_EVERY = 10
"""While nothing happens, only every tenth look does any work."""
UNSEEN_PERIOD_S = 1.0
"""Seconds between two drains while a reply is written and another screen is shown."""
MEASURE_PERIOD_S = 1.0
LONG_REPLY_S = 20.0
"""Seconds after which a reply notifies a user who looks at another window."""

_FREES_ENGINE = (
    events.ModelLoaded
    | events.ModelSwitchFailed
    | events.ConversationReread
    | events.TuningEnded
    | events.AdaptersChanged
)
"""Events after which the engine may be free, other than the end of a turn."""


class EngineFeed:
    """Fetches events and shows the engine's status, as often as the machine can afford.

    The screen receives each event in an ``EngineReported`` message.
    """

    def __init__(
        self,
        core: ChatCore,
        performance: PerformanceWatch,
        downloads: BackgroundDownload,
        activity_line: ActivityLine,
        status_line: StatusLine,
    ) -> None:
        self._core = core
        self._screen = core.screen
        self._engine_thread = core.engine_thread
        self._clock = self._engine_thread.now_s
        self._performance = performance
        self._pace = performance.pace
        self._downloads = downloads
        self._activity_line = activity_line
        self._status_line = status_line
        self._numbers = count(1)
        self._rhythm = TypingRhythm()
        self._rss_bytes = 0
        self._n_drains = 0
        self._n_rests = 0
        """Looks in a row that found nothing to do."""
        self._disk_rate = DiskRate()
        self._disk_bytes_per_s = 0.0
        self._shown_status = EngineStatus()
        self._shown_rss_bytes = 0
        self._shown_download = ""
        self._show_status()
        self._timer = core.screen.set_interval(DRAIN_PERIOD_S, self.drain)
        self._unseen_timer = core.screen.set_interval(
            UNSEEN_PERIOD_S, self._drain_unseen, pause=True
        )
        core.screen.set_interval(MEASURE_PERIOD_S, self.measure_machine)

    def follow_typing(self, text: str) -> None:
        """Draw a growing reply right after a key is painted while the user types."""
        self._rhythm.set_prompt_text(text, self._clock())
        if self._is_writing_on:
            self._screen.call_after_refresh(self._drain_after_key)

    def measure_machine(self) -> None:
        """Measure the memory of the process, and what it reads from the disk."""
        if not self._screen.is_current:
            return
        import psutil  # not needed for the first frame

        with suppress(psutil.Error, OSError):  # there may be no /proc
            self._rss_bytes = psutil.Process().memory_info().rss
        self._disk_bytes_per_s = self._disk_rate.since_last(self._clock()) or 0.0

    def drain(self) -> None:
        """Show new events, unless that can wait."""
        if self._is_writing_unseen:
            self._timer.pause()  # each look costs, also one that finds nothing
            self._unseen_timer.resume()
            return
        if self._is_at_rest:
            self._n_rests += 1
        else:
            self._n_rests = 0
        if self._n_rests % REST_EVERY:
            return
        self._core.edge.show_keys()  # compares texts: it need not wait for a frame
        is_writing_on = self._is_writing_on
        if not (is_writing_on and self._may_wait()):
            self._show_events(is_writing_on)

    @property
    def _is_at_rest(self) -> bool:
        chat_session = self._core.chat_session
        if chat_session.is_answering or chat_session.is_calling:
            return False
        if self._core.edge.shows_unseen or self._engine_thread.has_events():
            return False
        status = self._engine_thread.status
        return (
            status.activity is Activity.READY
            and status is self._shown_status
            and self._rss_bytes == self._shown_rss_bytes
            and self._download_progress() == self._shown_download
        )

    @property
    def _is_writing_unseen(self) -> bool:
        """Whether a reply is written while another screen is shown."""
        return self._is_writing_on and not self._screen.is_current

    def _drain_unseen(self) -> None:
        """Show new events of a reply that is written while another screen is shown."""
        if self._is_writing_unseen:
            self._show_events(True)
        else:
            self.resume()

    def resume(self) -> None:
        """Look for events as often as while the chat is shown."""
        self._unseen_timer.pause()
        self._timer.resume()
        self.drain()

    def _may_wait(self) -> bool:
        """Return whether the reply need not be drawn now."""
        if self._pace.leaves_out(next(self._numbers)):
            return True
        return self._rhythm.is_typing(self._clock())

    def _drain_after_key(self) -> None:
        now_s = self._clock()
        period_s = DRAIN_PERIOD_S * self._pace.divisor
        is_due = self._rhythm.is_typing(now_s) and self._rhythm.is_due(now_s, period_s)
        if self._is_writing_on and is_due:
            self._show_events(True)

    @property
    def _is_writing_on(self) -> bool:
        """Whether a reply is written now, and was when the status was last shown."""
        return (
            self._engine_thread.status.activity is Activity.WRITING is self._shown_status.activity
        )

    def _show_events(self, is_writing_on: bool) -> None:
        for event in self._engine_thread.drain():
            self._screen.post_message(EngineReported(event))
        self._rhythm.set_drawn_time(self._clock())
        self._n_drains += 1
        if not is_writing_on or self._n_drains % STATUS_EVERY == 0:
            self._show_status()

    def _download_progress(self) -> str:
        """Return the progress of the running download in a word or two; "" if there is none."""
        if self._downloads.job is None:
            return ""
        return self._downloads.word()

    def _show_status(self) -> None:
        status = self._engine_thread.status
        download = self._download_progress()
        if status.activity is not self._shown_status.activity:
            self._performance.sample_reply()
        self._shown_status = status
        self._shown_rss_bytes = self._rss_bytes
        self._shown_download = download
        self._activity_line.show(status, self._clock())
        if status.activity is Activity.NO_MODEL and self._core.chat_session.is_loading:
            status = replace(status, activity=Activity.LOADING)
        self._status_line.show(status, self._rss_bytes, download, self._disk_bytes_per_s)


class EventDisplay:
    """Shows each event of the engine in the parts of the chat that it changes.

    Args:
        continue_reading: lets the engine read the next document.
    """

    def __init__(
        self,
        core: ChatCore,
        turn_views: TurnViews,
        composer: Composer,
        editing: MessageEditing,
        messages: MessageActions,
        conversations: ConversationFlow,
        upkeep: ConversationUpkeep,
        models: ModelPanel,
        welcome: Welcome,
        answers: AnswerChoice,
        tools: ToolCalls,
        performance: PerformanceWatch,
        compaction: CompactionPart,
        continue_reading: Callable[[], None],
    ) -> None:
        self._core = core
        self._turn_views = turn_views
        self._composer = composer
        self._editing = editing
        self._messages = messages
        self._conversations = conversations
        self._upkeep = upkeep
        self._models = models
        self._welcome = welcome
        self._answers = answers
        self._tools = tools
        self._performance = performance
        self._compaction = compaction
        self._continue_reading = continue_reading
        self._focuses_stopped = False
        """Whether the reply that is being stopped gets the focus."""

    async def show(self, event: Event) -> None:
        """Change the conversation by an event, then show it."""
        outcome = self._core.chat_session.handle(event)
        if outcome.shown_events is not None:
            self._show_summary(outcome.shown_events)
            return
        match event:
            case events.TextGenerated():
                self._turn_views.reply().body.append(event.text)
                self._core.chat_session.save_partial()
            case events.ThoughtGenerated():
                self._turn_views.reply().think(event.text)
                self._core.chat_session.save_partial()
            case events.ThinkingFinished():
                running = self._core.chat_session.running
                if running is not None:
                    self._turn_views.reply().finish_thinking(running.reply.thinking)
                self._core.chat_session.save_partial()
            case events.ReplyReopened():
                self._turn_views.reopen_reply()
                self._core.chat_session.save_partial()
            case events.GenerationFinished() if outcome.is_repeated:
                self._core.say_event(events.EmptyReplyRepeated())
            case events.GenerationFinished():
                self._finish_reply(event)
            case events.GenerationFailed():
                self._show_failure(event, outcome)
            case events.PromptStopped():
                self._show_stop(event, outcome.is_restored)
            case events.PromptRefused():
                self._show_refusal(event, outcome)
            case events.DraftCounted():
                self._composer.take_count(event)
            case events.EditCostMeasured():
                self._editing.show_cost(event)
            case events.AnswersBegun():
                await self._answers.begin(event)
            case events.AnswerEvent():
                self._answers.grow(event)
            case events.AnswersFinished():
                self._finish_answers()
            case events.ToolsAnswered():
                self._tools.show_results()
            case events.ConversationResumed():
                self._conversations.show_taken_up(event)
            case events.TurnsDropped():
                self._conversations.show_dropped(event)
            case events.DocumentRead():
                self._core.documents.update(event)
                self._upkeep.tidy()
                self._continue_reading()
            case _:
                await self._show_model_event(event, outcome)
        if isinstance(event, _FREES_ENGINE):
            self._composer.ask_next()
        if self._composer.pictures.line.display:
            self._composer.pictures.show()
        self._core.edge.show_keys()

    async def _show_model_event(self, event: Event, outcome: TurnOutcome) -> None:
        match event:
            case events.ModelLoaded():
                await self._models.show_loaded(event, outcome.is_new)
                self._tools.say_where_results_go(event)
                self._composer.draft_cost.change_model()
                self._composer.pictures.check_draft()
            case events.ModelFailed():
                self._models.show_failed(event)
            case events.ModelSwitchFailed():
                self._models.show_kept(event)
            case events.AdaptersChanged():
                self._models.show_adapters(event)
            case events.ThreadsChanged() if self._core.hand_tuning.need_not_say(event):
                pass
            case events.MemoryMeasured():
                self._welcome.describe_machine(event)
            case _:
                self._core.say_event(event)

    def _show_summary(self, shown_events: Sequence[Event]) -> None:
        """Show the end of a summary, and send the next message if one waits."""
        for event in shown_events:
            self._compaction.show(event)
            self._composer.ask_next()
        self._core.edge.show_keys()

    # ---- the end of a turn

    def stop_reply(self) -> None:
        """Stop the reply or what else the engine does; a stopped reply gets the focus."""
        self._focuses_stopped = self._core.chat_session.is_answering
        self._core.chat_session.stop()

    def _finish_reply(self, event: events.GenerationFinished) -> None:
        """Finish the reply, and begin what its end makes possible."""
        core = self._core
        view = self._end_reply()
        is_long = event.figures.duration_s >= LONG_REPLY_S
        app = core.screen.app
        if core.settings.notify == "on" and is_long and not app.app_focus:
            notify_desktop(app)
        if event.ending is Ending.REPEATED:
            core.say(AGAINST_LOOPS)
        empty_line = empty_reply_line(core.chat_session.conversation)
        if empty_line:
            core.say(empty_line)
        if outcome := core.hand_tuning.outcome_of(event.figures):
            core.say(outcome)
        elif comparison := self._performance.compare_kv_types():
            from app.tui.speed.change_lines import comparison_text  # not for the first frame

            core.say(comparison_text(comparison, is_writing=False, glyphs=choose_glyphs()))
        self._composer.ask_next()
        self._messages.find_places_soon(view)

        was_stopped = event.ending is Ending.STOPPED and self._focuses_stopped
        if was_stopped and not core.chat_session.is_busy:
            core.screen.call_after_refresh(self._messages.focus_stopped, view)
        self._focuses_stopped = False

        self._composer.end_turn(event)
        self._tools.begin_round()
        self._welcome.describe_machine(event)
        self._welcome.name_real_model()
        self._upkeep.request_title_soon()
        self._compaction.request_soon()
        # The message may have brought files.
        if any(message.folded for message in core.chat_session.conversation.messages[-2:]):
            core.documents.invalidate()

    def _finish_answers(self) -> None:
        """Show the first of several answers, which stays unless the user chooses another."""
        view = self._turn_views.reply()
        message = self._core.chat_session.last_message
        assert message is not None
        view.finish_thinking(message.thinking)
        view.body.append(message.text)
        self._end_reply()
        if self._answers.is_open:
            self._answers.finish()
        else:
            self._composer.ask_next()
        self._upkeep.request_title_soon()

    def _end_reply(self) -> ReplyView:
        """Show the figures of the reply and what the user can do with it."""
        core = self._core
        self._upkeep.tidy()
        self._conversations.announce_full_context()
        self._editing.forget_sent()
        view = self._turn_views.reply()
        message = core.chat_session.last_message
        assert message is not None
        view.finish(message)
        if core.chat_session.can_continue:
            # The line on loops names the command, too.
            view.offer("" if message.ending is Ending.REPEATED else CONTINUE_OFFER)
        else:
            view.offer(ANSWERS_OFFER if message.alternatives else "")
        # After the last pass of Markdown: the number of widgets is known then.
        core.screen.call_after_refresh(core.transcript.trim)
        self._turn_views.end()
        return view

    def _show_failure(self, event: events.GenerationFailed, outcome: TurnOutcome) -> None:
        """Say why there is no reply, or only a part of it."""
        if outcome.returned_text:
            self._take_back_pictures(event, outcome.returned_text)
            return
        if event.partial_reply is not None:
            self._end_reply()
        else:
            self._end_unanswered(outcome.is_restored)
        self._core.say_event(event, outcome.is_restored)
        self._composer.ask_next()

    def _take_back_pictures(self, event: events.GenerationFailed, text: str) -> None:
        """Put a message back into the prompt whose pictures were not read, and say why."""
        core = self._core
        consequence = " (the message is in the prompt again)"
        if not self._give_back(text):
            key = core.keymap.first_key("prompt.older") or "Up"
            consequence = f" · {key} brings the message back"
        if not self._composer.pictures.refuses(draft_of(text), consequence):
            core.say(f"{event.reason}{consequence}", is_error=True)
        self._composer.ask_next()

    def _give_back(self, text: str) -> bool:
        """Give the turn's message back, which was not sent; return whether the prompt has it."""
        if self._turn_views.question is not None:
            self._turn_views.question.show_footer("not sent")
        self._turn_views.unjoin()
        self._turn_views.question = None
        return self._core.prompt.give_back(text)

    def _show_stop(self, event: events.PromptStopped, is_restored: bool) -> None:
        """Say that the message has no reply, or that the conversation is as before."""
        self._end_unanswered(is_restored)
        self._core.say_event(event, is_restored)
        self._composer.ask_next()

    def _show_refusal(self, event: events.PromptRefused, outcome: TurnOutcome) -> None:
        """Give a message back that does not fit the context, and say why."""
        core = self._core
        question = self._turn_views.question
        if isinstance(question, ToolView):
            self._end_unanswered(outcome.is_restored)
            needed = figures.count(event.needed_tokens)
            n_ctx = figures.count(event.n_ctx)
            line = f"the tools' results need {needed} tokens; the context holds {n_ctx}"
            core.say(line, is_error=True)
            self._composer.ask_next()
            return

        edited = self._turn_views.edited_question
        self._turn_views.restore_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        elif not outcome.returned_text:  # it was in the conversation before, and stays there
            self._end_unanswered(outcome.is_restored)
        else:
            self._give_back(outcome.returned_text)
        self._turn_views.question = None

        core.say_event(event)
        self._composer.ask_next()

    def _end_unanswered(self, is_restored: bool) -> None:
        """End a turn without a reply.

        Args:
            is_restored: whether the messages that the reply would have replaced are back.
        """
        self._answers.dismiss()
        self._tools.end_round()
        edited = self._turn_views.edited_question
        question = self._turn_views.question
        self._turn_views.restore_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        elif question is not None and not is_restored:
            question.show_footer("not answered")
        self._turn_views.end()
        self._editing.edit_again()
        replies = self._core.transcript.replies()
        if is_restored and self._core.chat_session.can_continue and replies:
            replies[-1].offer(CONTINUE_OFFER)

    def _take_edit_back(self, edited: UserView) -> None:
        """Remove an edited message that got no reply, and put it back into the prompt."""
        self._core.transcript.drop([edited])
        if not self._editing.edit_again():
            self._core.prompt.give_back(edited.text)
