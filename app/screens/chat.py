"""The chat: transcript, prompt, status. Shows what ``Turns`` decides and hands it what the user asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static, TextArea
from textual.worker import Worker

from app import export, figures
from app._textual_hacks import call_once, draw_thriftily, note_breakpoints
from app.actions import find_command, nearest_command, split_command
from app.bindings import bindings
from app.bridge import EngineBridge
from app.clean_text import clean_line, clean_text
from app.conversations.at_hand import AtHand
from app.conversations.records import fits
from app.draft import Draft
from app.engine_status import Activity
from app.events import (
    ConversationReread,
    ConversationTakenUp,
    GenerationFailed,
    GenerationFinished,
    ModelFailed,
    ModelKept,
    ModelLoaded,
    PromptCounted,
    PromptRefused,
    PromptStopped,
    PromptWeighed,
    ReplyReopened,
    TextGenerated,
    ThinkingFinished,
    ThoughtGenerated,
    ThreadsChanged,
    TuningDoubted,
    TuningEnded,
    TurnsDropped,
)
from app.glyphs import ASCII, choose_glyphs
from app.messages import (
    EngineReported,
    LinkChosen,
    PasteRefused,
    PromptSubmitted,
    TakeBackRequested,
    TranscriptScrolled,
)
from app.performance.interface_pace import Refreshes, TypingRhythm
from app.performance.watch import PerformanceWatch
from app.personas import how_to_add, load_persona, persona_names
from app.refusals import Refusal
from app.screens.drafting import Drafting, PromptHabits
from app.screens.model_flow import ModelFlow
from app.text_file import attached, read_text_file
from app.thread_command import USAGE, ThreadsRefused, describe_in_use, parse_threads
from app.turns import Admission, Turns
from app.widgets.activity_line import ActivityLine
from app.widgets.message_view import MessageView
from app.widgets.prompt import Prompt, prompt_hint, screens_hint
from app.widgets.status_line import StatusLine
from app.widgets.strip_display import StripDisplay
from app.widgets.suggestions import Suggestions
from app.widgets.transcript import Transcript

DRAIN_PERIOD_S = 0.1
STATUS_EVERY = 2
"""While a reply is written the status line changes with every second drain, which is as often as anyone reads it."""
UNSEEN_PERIOD_S = 0.5
"""While another screen is shown, what a reply brings is taken in so often."""
MEMORY_PERIOD_S = 1.0
SAVE_PERIOD_S = 1.5
"""A kill in the middle of a reply loses no more than that, or half a second more while another screen is shown."""
NOTE_S = 8.0
"""So long a note that is out of sight stands at the prompt's edge."""
PROMPT_EDGE_COLUMNS = 6
"""Of the prompt's edge, those that hold no words."""

_WITH_THINKING = "+thinking"


class ChatScreen(ModelFlow):
    """The screen that everything else is reached from."""

    CSS_PATH = "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = bindings("chat")
    AUTO_FOCUS = "Prompt"

    def __init__(
        self,
        bridge: EngineBridge,
        system: str | None,
        model_path: Path | None,
        clock: Callable[[], float],
        watch: PerformanceWatch,
        habits: PromptHabits | None = None,
        conversations: AtHand | None = None,
    ) -> None:
        super().__init__()
        draw_thriftily(self)
        self._habits = habits or PromptHabits()
        self.conversations = conversations or AtHand()
        self.turns = Turns(bridge, system, self.conversations.journal)
        self._bridge, self._model_path, self._clock = bridge, model_path, clock
        self._strip = StripDisplay(self, watch, "#middle")
        self._pace, self._refreshes, self._rhythm = watch.pace, Refreshes(watch.pace), TypingRhythm()
        self._rss_bytes = self._n_drains = 0
        self._shown_activity: Activity | None = None
        self._screens_hint = ""
        self._was_shown = False
        self._passing: Timer | None = None
        self._editing: Worker[None] | None = None
        """While the user's editor has the terminal."""

    def compose(self) -> ComposeResult:
        """Lay out the screen from top to bottom."""
        note_breakpoints(self)
        with Horizontal(id="title-bar"):
            yield Static(Content("jalopy"), markup=False, id="program")
            yield Static(markup=False, id="model-name")
        with Horizontal(id="middle"):
            yield Transcript(id="transcript")
        keymap = self._habits.keymap
        yield Suggestions(keymap.first_key("prompt.complete"), id="suggestions")
        yield ActivityLine(id="activity")
        yield Static(markup=False, id="edit-line")
        yield Prompt(id="prompt", keymap=keymap)
        yield StatusLine(id="status", ascii_only=choose_glyphs() is ASCII, hint=keymap.hint("app.help", "help"))

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """The first time every widget has just been styled."""
        event.refresh_styles = event.refresh_styles and self._was_shown
        self._was_shown = True

    def on_mount(self) -> None:
        """Begin to listen to the engine, once the first frame stands."""
        self.transcript = self.query_one(Transcript)
        self.prompt = self.query_one(Prompt)
        self.query_one("#edit-line").display = False
        self.drafting = Drafting(self.prompt, self.turns, self._bridge, self._habits)
        self._shown_by = self._list_event_handlers()
        self._show_status()
        self.set_interval(DRAIN_PERIOD_S, self._drain)
        self.set_interval(MEMORY_PERIOD_S, self._measure_memory)
        self.set_interval(SAVE_PERIOD_S, self.save_what_comes)
        # What waits for a refresh here and now would not wait for the first frame: the application holds that back.
        self.app.call_later(self.call_after_refresh, self._start_engine)

    # ---- the engine's side

    def _start_engine(self) -> None:
        self._bridge.start()
        self._measure_memory()
        self.drafting.load_history()
        if self._model_path is None:
            self.note(self._how_to_load())
        else:
            is_resumed = self.resume_last(self._model_path)
            self._load(self._model_path, keeps=is_resumed, rereads=False)

    def _list_event_handlers(self) -> dict[type, tuple[Callable[[Any], Awaitable[None] | None], ...]]:
        return {
            ModelLoaded: (self.show_model,),
            ModelFailed: (self.show_load_failure,),
            ModelKept: (self.show_kept_model,),
            ConversationReread: (self.end_rereading,),
            ConversationTakenUp: (self.tell_taken_up,),
            TextGenerated: (self.show_text,),
            ThoughtGenerated: (self.show_thought,),
            ThinkingFinished: (self.fold_thinking,),
            ReplyReopened: (self.reopen_reply,),
            GenerationFinished: (self.drop_old_states, self.announce_full_context, self.finish_reply),
            GenerationFailed: (self.show_failure,),
            PromptCounted: (self.drafting.note_count,),
            PromptStopped: (self.show_stop,),
            PromptRefused: (self.give_back,),
            PromptWeighed: (self._show_weight,),
            TurnsDropped: (self.tell_dropped,),
            ThreadsChanged: (self.show_threads,),
            TuningDoubted: (self.doubt_tuning,),
            TuningEnded: (self.end_tuning,),
        }

    def _drain(self) -> None:
        is_writing_on = self._is_writing_on
        if not (is_writing_on and self._may_wait()):
            self._show_what_came(is_writing_on)

    def _may_wait(self) -> bool:
        """Whether nobody misses what the reply has brought by now."""
        now_s = self._clock()
        if not self.is_current:
            return not self._rhythm.is_due(now_s, UNSEEN_PERIOD_S)
        return self._refreshes.is_left_out() or self._rhythm.is_typing(now_s)

    def _drain_behind_key(self) -> None:
        now_s = self._clock()
        is_due = self._rhythm.is_typing(now_s) and self._rhythm.is_due(now_s, DRAIN_PERIOD_S * self._pace.divisor)
        if self._is_writing_on and is_due:
            self._show_what_came(True)

    @property
    def _is_writing_on(self) -> bool:
        return self._bridge.status.activity is Activity.WRITING is self._shown_activity

    def _show_what_came(self, is_writing_on: bool) -> None:
        for event in self._bridge.drain():
            self.post_message(EngineReported(event))
        self._rhythm.note_drawn(self._clock())
        self._n_drains += 1
        if not is_writing_on or self._n_drains % STATUS_EVERY == 0:
            self._show_status()

    def _show_status(self) -> None:
        status = self._bridge.status
        self._shown_activity = status.activity
        self.query_one(ActivityLine).show(status, self._clock())
        self.query_one(StatusLine).show(status, self._rss_bytes, self._jalopy.downloads.word())
        self.prompt.show_keys(self._keys_at_hand())

    def _keys_at_hand(self) -> str:
        """Name what stops the running reply; while none runs, what leads to the other screens."""
        if self.turns.is_answering:
            stop = self._habits.keymap.first_key("chat.stop")
            return f"{stop} stops the reply" if stop else ""
        return self._screens_hint

    def _measure_memory(self) -> None:
        import psutil  # not with the module: the first frame would wait for it

        self._rss_bytes = psutil.Process().memory_info().rss

    @on(EngineReported)
    async def show_event(self, reported: EngineReported) -> None:
        """Let those who wait for it show what the engine has reported."""
        for show in self._shown_by[type(reported.event)]:
            shown = show(reported.event)
            if shown is not None:
                await shown

    # ---- the user's side

    @on(PromptSubmitted)
    async def take_prompt(self, message: PromptSubmitted) -> None:
        """Send a message, or carry out a command."""
        if not (fits(message.text) and fits(message.draft.shown)):
            self.note("not sent: longer than any context holds")
            self.prompt.give_back(message.text)
            return
        if self.is_editing_reply:
            if not self._send_edited_reply(clean_text(message.text)):
                self.prompt.give_back(message.text)
            return
        text = message.text.strip()
        command = ("", "") if text == "/" else split_command(text)
        if trouble := self.drafting.keep(message.draft):
            self.note(trouble, is_error=True)
        taken = (
            await self._run_command(*command) if command is not None else self._send(clean_text(text), message.draft)
        )
        if not taken:
            self.prompt.give_back(message.text)

    def _send(self, text: str, draft: Draft) -> bool:
        folded = clean_text(draft.shown.strip()) if draft.folds else ""
        if self.is_editing:
            return self._send_edit(text, folded)
        admission = self.turns.submit(text, folded)
        if admission is Admission.NO_MODEL:
            self.note(self._how_to_load())
        elif admission is Admission.FULL:
            self.note("several messages wait already; this one was not sent")
        else:
            self._show_question(text, folded, admission)
            return True
        return False

    def _show_question(self, text: str, folded: str, admission: Admission) -> None:
        view = self.transcript.add_user(text, folded)
        if admission is Admission.QUEUED:
            view.mark("queued · Up in an empty prompt takes it back")
            self._queued.append(view)
            self.prompt.has_waiting = True
        else:
            self._asked = view
            view.message = self.turns.conversation.messages[-1]

    async def _run_command(self, word: str, argument: str) -> bool:
        action = find_command(word)
        if action is None:
            nearest = nearest_command(word) if word else "help"
            self.note(f"/{word} is no command; the nearest is /{nearest}. Nothing was sent.", is_error=True)
            return False
        if action.needs_argument and not argument:
            self.note(f"usage: /{action.command} {action.argument}")
            return False
        if argument and not action.takes_argument:
            self.note(f"/{action.command} takes nothing behind it. Nothing was done.", is_error=True)
            return False
        target = self.app if action.scope == "app" else self
        outcome = getattr(target, f"action_{action.name}")(*([argument] if action.takes_argument else []))
        if outcome is not None:
            await outcome
        return True

    @on(TextArea.Changed)
    def suggest(self, event: TextArea.Changed) -> None:
        """List the commands that fit what is typed."""
        self.query_one(Suggestions).show_for(event.text_area.text)
        self.drafting.note_change()
        self._rhythm.note_text(event.text_area.text, self._clock())
        if self._is_writing_on:
            self.call_after_refresh(self._drain_behind_key)

    @on(TranscriptScrolled)
    def scroll(self, message: TranscriptScrolled) -> None:
        """Move the transcript by pages."""
        if message.pages < 0:
            self.transcript.page_up()
        else:
            self.transcript.scroll_page_down(animate=False)

    @on(LinkChosen)
    def show_link(self, message: LinkChosen) -> None:
        """Show where a link leads."""
        self.note(f"link: {clean_line(message.address, 500)}")

    def note(self, text: str, is_error: bool = False) -> None:
        """Say something between the messages; where the user is not at their end, at the prompt's edge as well."""
        super().note(text, is_error)
        if isinstance(self.focused, MessageView) or self.transcript.is_scrolled_up:
            self.hint_for(NOTE_S, clean_line(text, 300))

    def hint(self, text: str = "") -> None:
        """Show a word at the prompt's edge; "" brings the usual one back."""
        usual = self.edit_hint() if self.is_editing else prompt_hint(self._habits.keymap)
        self.prompt.border_title = Content(text or usual)

    def hint_for(self, seconds: float, text: str) -> None:
        """Show a passing word there."""
        self.hint(text)
        if self._passing is not None:
            self._passing.stop()
        self._passing = call_once(self, seconds, self._end_passing)

    def _end_passing(self) -> None:
        self.hint(self._keys_of(self.focused) if isinstance(self.focused, MessageView) else "")

    @on(PasteRefused)
    def refuse_paste(self, message: PasteRefused) -> None:
        """Say why a paste is not in the prompt."""
        self.note(f"not pasted: {figures.count(message.n_chars)} characters are more than any context holds")

    def on_resize(self, event: events.Resize) -> None:
        """Let the strip lie flat on a narrow screen."""
        self._strip.fit(event.size.width)
        self._screens_hint = screens_hint(self._habits.keymap, event.size.width - PROMPT_EDGE_COLUMNS)

    # ---- actions

    def action_toggle_strip(self) -> None:
        """Show or hide the speed strip."""
        self._strip.toggle()

    def action_stop(self) -> None:
        """Leave a message or the editing; else stop the reply, of which what there is stays, or what else runs."""
        if isinstance(self.focused, MessageView):
            self._go_to_prompt()
        elif not self.cancel_edit():
            self._focuses_stopped = self.turns.is_answering
            self.turns.stop()

    @on(TakeBackRequested)
    async def take_back_into_prompt(self) -> None:
        """Do that for a key that meant an empty prompt; one pressed twice takes back one message."""
        if not self.prompt.text:
            await self.action_take_back()

    async def action_take_back(self) -> None:
        """Take the newest message back that waits for its turn, to change it or to drop it."""
        text = self.turns.take_back_queued()
        if text is None:
            self.note("no message waits")
            return
        await self._queued.pop().remove()
        self.prompt.has_waiting = bool(self._queued)
        self.prompt.give_back(text)

    async def action_unfold(self) -> None:
        """Show pasted text whole, or folded again."""
        self.transcript.toggle_folds()

    def action_external_editor(self) -> None:
        """Write the message in the user's editor."""
        # Not awaited here: what a reply brings meanwhile is taken in and saved, and signals are heard.
        if self._editing is None or self._editing.is_finished:
            self._editing = self.run_worker(self._edit_externally())

    async def _edit_externally(self) -> None:
        if line := await self.drafting.edit_externally(self.app):
            self.note(line, is_error=True)

    async def action_persona(self, name: str = "") -> None:
        """List the personas, or begin a new conversation with one."""
        if not name:
            names = ", ".join(persona_names())
            self.note(f"personas: {names} (/persona NAME)" if names else f"there are no personas ({how_to_add()})")
            return
        try:
            system = load_persona(name)
        except Refusal as refusal:
            self.note(str(refusal), is_error=True)
            return
        await self._start_anew(system, f"persona {name}: {clean_line(system, 200)}")

    async def action_new(self) -> None:
        """Start a new conversation."""
        await self._start_anew(self.turns.conversation.system, self.what_new_means())

    async def action_system(self, text: str = "") -> None:
        """Show or set the system prompt."""
        system = self.turns.conversation.system
        if not text:
            self.note(f"system prompt: {system}" if system else "There is no system prompt; /system TEXT sets one.")
            return
        consequence = "" if self.turns.conversation.is_empty else " (a new conversation)"
        system = None if text == "-" else clean_text(text)
        await self._start_anew(system, f"system prompt: {system or 'none'}{consequence}")

    async def _start_anew(self, system: str | None, note: str) -> None:
        if not self.turns.start_anew(system):
            self._note_busy()
            return
        await self._clear_transcript()
        self.note(note)

    def action_threads(self, wanted: str = "") -> None:
        """Show the threads, or use others from the next token on; remembered only by the tuning screen."""
        in_use = self._bridge.threads
        if in_use is None:
            self.note(self._how_to_load())
        elif not wanted:
            tune = self._habits.keymap.key_or_command("app.tune")
            self.note(
                f"{describe_in_use(in_use)}. {USAGE}, 1 to {in_use.most}; {tune} finds the best and remembers it."
            )
        else:
            try:
                self._bridge.wish_threads(replace(in_use, now=parse_threads(wanted, in_use)))
            except ThreadsRefused as refused:
                self.note(str(refused), is_error=True)

    def action_read(self, wanted: str) -> None:
        """Attach a text file to the message in the prompt."""
        try:
            path = Path(wanted).expanduser()
            self.prompt.attach(path.name, attached(path.name, read_text_file(path)))
        except (Refusal, RuntimeError) as refusal:
            self.note(str(refusal), is_error=True)

    def action_save(self, wanted: str = "") -> None:
        """Save the conversation as Markdown; with "+thinking" at the end, what the model thought too."""
        with_thinking = wanted.endswith(_WITH_THINKING)
        wanted = wanted.removesuffix(_WITH_THINKING).rstrip()
        if self.turns.conversation.is_empty:
            self.note("there is nothing to save yet")
            return
        now = datetime.now().astimezone()
        model = self.turns.model
        name = f"{model.name} {model.quantization}" if model else ""
        try:
            path = export.choose_path(wanted, now)
            as_text = export.to_json if path.suffix.lower() == ".json" else export.to_markdown
            export.write_new(path, as_text(self.turns.conversation, name, now, with_thinking))
        except FileExistsError:
            self.note(f"not saved: {path} exists already; choose another name", is_error=True)
        except (OSError, ValueError, RuntimeError) as error:
            self.note(f"not saved: {clean_line(str(error), 200)}", is_error=True)
        else:
            has_thinking = any(message.thinking for message in self.turns.conversation.messages)
            hint = f" (without the thinking; `/save PATH {_WITH_THINKING}` keeps it)"
            self.note(f"saved: {path.absolute()}{hint if has_thinking and not with_thinking else ''}")
