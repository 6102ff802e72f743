"""The performance screen: speed, its limit, where the time goes, and the state of the machine.

Its keys change threads and memory modes at once, also while a reply is written.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partialmethod
from itertools import count
from typing import Any

from textual.geometry import Size

from app.backend.status import Activity, EngineStatus
from app.machine.tuning.threads_in_use import (
    ChoiceChange,
    ThreadsInUse,
    describe,
    describe_shortly,
    name_threads,
)
from app.program.settings import AUTO, DEFAULT_KV_TYPE
from app.program.state import TunedChoice
from app.session.events import ThreadsChanged
from app.session.reply_options import describe_thinking
from app.text.figures import counted
from app.text.glyphs import choose_glyphs
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.graph import GraphScale
from app.tui.drawing.lines import Line, Span, SpanRole, line
from app.tui.screens.figure_screen import FigureScreen
from app.tui.speed.dashboard import dashboard_lines
from app.tui.speed.watch import PerformanceView
from app.tui.speed.writing_lines import absent_model_text
from app.tui.widgets.figure_lines import Key, KeyLine, ScreenTitle

NOTE_S = 3.0
"""Seconds that words on a key are shown."""
_KV_TYPES = ("f16", "q8_0", "q4_0", "f32")
_POLLS_PER_DRAWING = 2
_POLLS_PER_IDLE_DRAWING = 4


class PerformanceScreen(FigureScreen):
    """Screen with live figures, which polls only while it is shown.

    It is a Textual mode of its own: Textual also draws the screen below a pushed one, so a
    streaming reply would redraw this screen ten times a second.
    """

    BINDINGS = bindings("performance")
    TITLE = "Speed"
    PERIOD_S = 0.5

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__()
        self._core = chat.core
        self._watch = chat.performance
        self._keymap = chat.core.keymap
        self._hand_tuning = chat.core.hand_tuning
        self._chat_session = chat.core.chat_session
        self._engine_thread = chat.core.engine_thread
        self._refresh_numbers = count(1)
        self._glyphs = choose_glyphs()
        self._scale = GraphScale()
        self._note = ""
        """Words on the last key."""
        self._note_until_s = 0.0
        self._changes: tuple[ChoiceChange, ...] = ()
        """Changes whose trouble was shown."""
        self._in_use_before: ThreadsInUse | None = None
        """Threads in use when the screen was opened."""
        self._is_covered = False
        """Whether help or palette cover the screen."""
        self._shown: tuple[PerformanceView, str, Size, int] | None = None
        """View and note that were drawn last, and the size for which they were drawn."""

    def on_screen_resume(self) -> None:
        """Start to watch the machine."""
        self._watch.register_view(self, True)
        self._watch.pace.restart()
        self._hand_tuning.is_shown = True
        state = self._engine_thread.state
        if not self._is_covered:
            self._in_use_before = state.threads
            self._changes = state.changes
            self._note = ""
        self._is_covered = False
        self._timer.resume()
        self.call_after_refresh(self.show_figures)

    def on_screen_suspend(self) -> None:
        """Stop watching the machine; say in the chat what was changed."""
        self._watch.register_view(self, False)
        self._watch.pace.restart()
        self._is_covered = self.app.current_mode == "performance"
        if self._is_covered:
            return
        self._hand_tuning.is_shown = False
        before = self._in_use_before
        in_use = self._engine_thread.state.threads
        if before is not None and in_use is not None and before != in_use:
            self._hand_tuning.said = in_use
            self._core.say_event(ThreadsChanged(before, in_use))

    def poll(self) -> None:
        """Show the figures once a second, or every two seconds while the engine does nothing, and
        at once when its activity changes; the pace of drawing may leave out refreshes.
        """
        number = next(self._refresh_numbers)
        if self._is_new():
            self.show_figures()
            return
        n_polls = _POLLS_PER_DRAWING
        if not self._engine_thread.status.is_busy:
            n_polls = _POLLS_PER_IDLE_DRAWING
        if number % n_polls == 0 and not self._watch.pace.leaves_out(number // n_polls):
            self.show_figures()

    def _is_new(self) -> bool:
        """Whether the engine does something else than when the figures were drawn last, or has
        done something since then."""
        if self._shown is None:
            return True
        shown = self._shown[0]
        status = self._engine_thread.status
        if status.is_busy:
            return status.activity is not shown.status.activity
        if self._engine_thread.idle_work_name != shown.idle_work:
            return True
        return status != shown.status or self._engine_thread.state.figures != shown.figures

    def show_figures(self) -> None:
        """Show the present figures."""
        self._show(self._watch.read_view())

    def _show(self, view: PerformanceView) -> None:
        self.query_one(ScreenTitle).set_content(self._context_text(view), _state(view))
        key_line = self.query_one(KeyLine)
        n_key_rows = len(key_line.lines)
        key_line.set_content(self._keys())
        if len(key_line.lines) != n_key_rows:
            self.call_after_refresh(self.show_figures)  # with the rows that are left
        note = self._current_note()
        shown = view, note, self.size, self.body_rows
        if shown == self._shown:
            return  # nothing has happened since the last poll: drawing is most of the cost
        self._shown = shown
        self.fill(
            lambda width: dashboard_lines(
                view, width, self.body_rows, self._glyphs, self._scale, note
            )
        )

    def _context_text(self, view: PerformanceView) -> str:
        model = self._chat_session.model
        if model is None:
            return absent_model_text(view.status)
        if model.server:
            return self._glyphs.between.join((model.name, f"computed by {model.server}"))
        words = [model.name, model.quantization]
        in_use = self._engine_thread.state.threads
        if in_use is not None:
            words.append(counted(_n_threads(in_use.now, _phase(view.status)), "thread"))
            if in_use.now.pinned:
                words.append("pinned")
            if in_use.now.weights == "huge":
                words.append("huge pages")
            if in_use.now.kv_type not in ("", DEFAULT_KV_TYPE):
                words.append(f"KV {in_use.now.kv_type}")
        if (thinking := self._chat_session.request_options.thinking) not in ("", AUTO):
            words.append(describe_thinking(thinking))
        return self._glyphs.between.join(filter(None, words))

    def _keys(self) -> list[Key]:
        key = self._keymap.first_key
        leave = (key("performance.leave"), "back")
        words = (key("performance.explain"), "words")
        if self._hand_tuning.chosen is None:
            return [leave, ("arrows", "scroll"), words]
        fewer_and_more = filter(
            None, (key("performance.fewer_threads"), key("performance.more_threads"))
        )
        keys = [
            (" ".join(fewer_and_more), "threads"),
            (key("performance.huge_pages"), "huge pages"),
            (key("performance.pin"), "pin"),
            (key("performance.kv_type"), "KV type"),
        ]
        if self._hand_tuning.previous is not None:
            keys.append((key("performance.undo"), "undo"))
        if (to_keep := self._hand_tuning.to_keep) is not None:
            keys.append((key("performance.keep"), f"keep {describe_shortly(to_keep)}"))
        return [*keys, words, leave]

    # ---- words on keys

    def _say(self, text: str) -> None:
        self._note = text
        self._note_until_s = self._engine_thread.now_s() + NOTE_S
        self.show_figures()

    def _current_note(self) -> str:
        """Return the words on the last key while they are new, and why a change failed."""
        changes = self._engine_thread.state.changes
        if changes is not self._changes:
            self._changes = changes
            if changes and changes[-1].trouble:
                self._note = changes[-1].trouble
                self._note_until_s = self._engine_thread.now_s() + 2 * NOTE_S
        if self._engine_thread.now_s() >= self._note_until_s:
            self._note = ""
        return self._note

    def _why_not(self) -> str:
        """Return why the keys change nothing; "" if they do."""
        model = self._chat_session.model
        if model is not None and model.server:
            return f"{model.server} computes the replies, with its own threads and memory"
        if self._hand_tuning.chosen is None:
            return f"no model is open: {self._keymap.key_or_command('app.models')} opens one"
        return ""

    # ---- actions

    def _try(self, text: str, **changes: Any) -> None:
        """Change the choice for this run, and say what is changed."""
        chosen = self._hand_tuning.chosen
        if reason := self._why_not():
            self._say(reason)
        elif chosen is not None:
            self._hand_tuning.try_choice(replace(chosen.now, **changes))
            self._say(f"{text}, for this run")

    def _change_threads(self, step: int) -> None:
        """Use more or fewer threads for what the engine does now, or else for writing."""
        chosen = self._hand_tuning.chosen
        if chosen is None or self._why_not():
            self._say(self._why_not())
            return
        phase = _phase(self._engine_thread.status)
        n_threads = _n_threads(chosen.now, phase) + step
        if n_threads < 1:
            self._say("1 thread is the least")
        elif n_threads > chosen.most:
            self._say(f"{counted(chosen.most, 'thread')}: one for each CPU of this machine")
        else:
            from engine.machine import host

            text = name_threads(n_threads, host.cores().kind)
            if phase == "prefill":
                text = f"reading the prompt with {text}"
            self._try(text, **{phase: n_threads})

    action_more_threads = partialmethod(_change_threads, 1)
    action_fewer_threads = partialmethod(_change_threads, -1)

    def action_huge_pages(self) -> None:
        """Move the weights to huge pages, or back to the mapped file."""
        from engine.machine.memory import gives_huge_pages

        chosen = self._hand_tuning.chosen
        if chosen is not None and chosen.now.weights == "huge":
            self._try("weights in the mapped file", weights="mmap")
        elif chosen is not None and not gives_huge_pages():
            doctor = self._keymap.key_or_command("app.doctor")
            self._say(f"this system gives no huge pages: {doctor} says how to allow them")
        else:
            self._try("weights in huge pages", weights="huge")

    def action_pin(self) -> None:
        """Bind each thread to a core, or no longer."""
        chosen = self._hand_tuning.chosen
        if chosen is not None and not hasattr(os, "sched_setaffinity"):
            self._say("this system does not let a program bind its threads to cores")
        elif chosen is not None and chosen.now.pinned:
            self._try("the system places the threads", pinned=False)
        else:
            self._try("each thread bound to one core", pinned=True)

    def action_kv_type(self) -> None:
        """Use the next type of KV cache; a running reply is finished with the present one."""
        chosen = self._hand_tuning.chosen
        if chosen is None or self._why_not():
            self._say(self._why_not())
            return
        types = _KV_TYPES
        present = chosen.now.kv_type
        following = types[0]
        if present in types:
            following = types[(types.index(present) + 1) % len(types)]
        self._hand_tuning.try_kv_type(following)
        text = f"KV cache {following}, for this run: the next message reads the conversation again"
        if self._engine_thread.status.is_busy:
            text = f"KV cache {following} after this reply, which then is read again"
        self._say(text)

    def action_keep(self) -> None:
        """Save the choice set by hand."""
        chosen = self._hand_tuning.chosen
        if chosen is None or self._why_not():
            self._say(self._why_not())
        elif self._hand_tuning.to_keep is None:
            self._say(f"nothing to keep: {describe(chosen.now)}, as at the start")
        else:
            self._hand_tuning.keep()
            text = f"kept for this machine and model: {describe(chosen.now)}"
            if chosen.has_other_kv_type and self._engine_thread.settings.kv_type != AUTO:
                text = f"{text}; at the next start the setting kv_type decides"
            self._say(text)

    def action_undo(self) -> None:
        """Restore the choice before the last change, both in use and saved."""
        previous = self._hand_tuning.previous
        if reason := self._why_not():
            self._say(reason)
        elif previous is None:
            self._say("nothing to undo")
        else:
            self._hand_tuning.undo()
            self._say(f"undone: {describe(previous.now)}")


def _state(view: PerformanceView) -> Line:
    """Return the engine's activity in the colour of its speed."""
    activity = view.status.activity
    roles = {Activity.READING: SpanRole.READING, Activity.WRITING: SpanRole.WRITING}
    return line(Span(view.idle_work or activity.value, roles.get(activity, SpanRole.MUTED)))


def _phase(status: EngineStatus) -> str:
    """Return the phase whose threads compute now, or would compute a reply."""
    if status.activity is Activity.READING:
        return "prefill"
    return "decode"


def _n_threads(choice: TunedChoice, phase: str) -> int:
    if phase == "prefill":
        return choice.prefill
    return choice.decode
