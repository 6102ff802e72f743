"""The draft in the prompt: history, completions, estimate, reading ahead, the user's editor.

The estimate is exact where the engine has counted. Everything else in it is learnt from what was counted and measured
in this session with this model; nothing is said of time before a prompt was measured.
"""

from __future__ import annotations

import os
from asyncio import wrap_future
from collections import deque
from concurrent.futures import Future
from functools import partial

from textual.app import App
from textual.timer import Timer

from app.chat.events import PromptCounted
from app.chat.read_ahead import MAX_CHARS
from app.documents.read import described
from app.program import paths
from app.program.background import in_background
from app.program.manual import topics
from app.program.personas import persona_names
from app.program.refusals import Refusal
from app.text import figures
from app.tui.chat_options import may_read_ahead
from app.tui.completing import Names, Offered, offered_at_once, offered_paths
from app.tui.draft import Draft
from app.tui.prompt_history import append_history, keep_unsent, read_history, take_unsent
from app.tui.screens.surroundings import Surroundings
from app.tui.textual_hacks import call_once
from app.tui.widgets.prompt import Prompt

TICK_S = 0.5
"""The estimate follows the text at this pace."""
QUIET_TICKS = 3
"""Ticks without a change after which the user is taken to be thinking, and the engine may read ahead."""
COMMON_BYTES_PER_TOKEN = 4.0
"""Of English text in most vocabularies, until this model's own figure is known."""
_TEMPLATE_TOKENS = 8
_LEAST_BYTES_TO_LEARN = 60
_LEAST_TOKENS_TO_LEARN = 16
"""Shorter prompts take a slower path, and mostly show what starting costs."""
_READS_REMEMBERED = 5


class PromptEstimator:
    """Learns what sending the prompt costs, and estimates from what it learnt."""

    def __init__(self) -> None:
        self._reads: deque[tuple[int, float]] = deque(maxlen=_READS_REMEMBERED)
        self.bytes_per_token = COMMON_BYTES_PER_TOKEN
        self._text: str | None = None
        self._is_exact = False
        self._tokens = self._ready_tokens = 0

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens read per second over the last few prompts."""
        seconds = sum(read_s for _, read_s in self._reads)
        return sum(tokens for tokens, _ in self._reads) / seconds if seconds > 0 else None

    def forget_model(self) -> None:
        """Another model has other tokens and another speed."""
        self._reads.clear()
        self.bytes_per_token = COMMON_BYTES_PER_TOKEN
        self.forget_text()

    def forget_text(self) -> None:
        """Forget the counted draft: it was sent or dropped."""
        self._text, self._tokens, self._ready_tokens = None, 0, 0

    def learn_read(self, tokens: int, seconds: float) -> None:
        """Record that reading ``tokens`` tokens of a prompt took ``seconds``."""
        if tokens >= _LEAST_TOKENS_TO_LEARN and seconds > 0:
            self._reads.append((tokens, seconds))

    def suppose(self, text: str, tokens: int) -> None:
        """Take this for the tokens of a text until the engine has counted."""
        self._text, self._tokens, self._ready_tokens, self._is_exact = text, tokens, 0, False

    def learn_count(self, text: str, tokens: int, ready_tokens: int) -> None:
        """The engine counted this text."""
        if self._text is not None and self._is_exact:
            more_bytes, more_tokens = _n_bytes(text) - _n_bytes(self._text), tokens - self._tokens
            if abs(more_bytes) >= _LEAST_BYTES_TO_LEARN and more_bytes * more_tokens > 0:
                self.bytes_per_token = more_bytes / more_tokens
        self._text, self._tokens, self._ready_tokens, self._is_exact = text, tokens, ready_tokens, True

    def line(self, text: str) -> str:
        """Say for the prompt's corner what sending this text would cost: "840 tokens, 768 read ahead, about 2 s"."""
        if self._text is None:
            tokens = round(_n_bytes(text) / self.bytes_per_token) + _TEMPLATE_TOKENS
        else:
            more_bytes = _n_bytes(text) - _n_bytes(self._text)
            tokens = max(1, self._tokens + round(more_bytes / self.bytes_per_token))
        parts = [f"{'' if text == self._text and self._is_exact else 'about '}{figures.count(tokens)} tokens"]
        if ready := min(self._ready_tokens, tokens):
            parts.append(f"{figures.count(ready)} read ahead")
        if rate := self.prefill_tps:
            seconds = (tokens - ready) / rate
            parts.append("under 1 s" if seconds < 1 else f"about {figures.whole_seconds(seconds)}")
        return ", ".join(parts)


def _n_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


class Drafting:
    """Watches over one prompt."""

    def __init__(self, prompt: Prompt, around: Surroundings) -> None:
        self._prompt, self._around, self._turns, self._bridge = prompt, around, around.turns, around.bridge
        self._history_file = paths.history_file() if around.settings.prompt_history == "on" else None
        self._older_key = around.keymap.first_key("prompt.older")
        self._told_history_trouble = False
        self.estimator = PromptEstimator()
        self._timer: Timer | None = None
        self._seen = self._counted = self._prepared = ""
        self._quiet_ticks = 0
        self._is_paused = False
        self._named: list[str] = []
        """Files whose names were typed."""
        generation = self._bridge.generation
        self._names: dict[str, Names] = {
            "theme": lambda: sorted(self._prompt.app.available_themes),
            "persona": persona_names,
            "help": topics,
            "set": lambda: [*generation.names, "keep", "reset"] if generation is not None else [],
        }
        """What commands take, by the command's name."""

    def set_paused(self, is_paused: bool) -> None:
        """Neither estimate nor read ahead meanwhile: the prompt holds an edited message, not the next one."""
        self._is_paused = is_paused
        self.note_change()

    # ---- completions

    def offer(self) -> None:
        """List what the typed command, name or path could become; paths a moment later."""
        typed = self._prompt.typed
        self._prompt.offer(offered_at_once(typed, self._names))
        paths = offered_paths(typed)
        if paths is not None:  # each goes its way: one that was called off before it began would never be awaited
            self._prompt.run_worker(self._offer_paths(typed, paths), group="paths")

    async def _offer_paths(self, typed: str, paths: Future[list[Offered]]) -> None:
        found = await wrap_future(paths)
        if self._prompt.typed == typed:
            self._prompt.offer(found)

    def _look_for_files(self) -> None:
        """Say which files the typed names lead to, a moment later."""
        names = self._prompt.draft.referred
        if names != self._named:
            self._named = names
            self._prompt.run_worker(self._show_files(names), group="files")

    async def _show_files(self, names: list[str]) -> None:
        files = await wrap_future(in_background(partial(described, names), "files")) if names else ""
        if self._named == names:
            self._prompt.show_files(files)

    # ---- history

    def load_history(self) -> None:
        """Bring back what was sent in earlier starts."""
        self._prompt.past.add_older(read_history(self._history_file))

    def keep(self, draft: Draft) -> str | None:
        """Keep what was sent; returns a line of trouble the first time that fails."""
        trouble = append_history(self._history_file, draft)
        if trouble is None or self._told_history_trouble:
            return None
        self._told_history_trouble = True
        return trouble

    # ---- what is not sent when the program ends unexpectedly

    def keep_unsent(self, aside: Draft) -> str:
        """Keep what no one has taken yet, a draft put aside and what is here; returns a line on it."""
        # What waits for its turn is in the conversation's log, where that is saved.
        prompt = self._prompt
        queued = [] if self._turns.journal.saves else self._turns.queued_texts
        waiting = [prompt.past.find(text) or Draft(text) for text in queued]
        drafts = [draft for draft in (*waiting, *prompt.unheeded, aside, prompt.draft) if draft.text.strip()]
        if not drafts:
            return ""
        trouble = keep_unsent(paths.unsent_file(), drafts)
        kept = "what was not sent is there again at the next start"
        return f"not sent, and not saved: {trouble}" if trouble else kept

    def bring_back_unsent(self) -> str:
        """Put what an earlier run kept back: the newest into the prompt; returns a line that says so, or ""."""
        drafts, said = take_unsent(paths.unsent_file()), []
        if drafts and not self._prompt.text:
            self._prompt.show_draft(drafts.pop())
            said.append("it is in the prompt again")
        for draft in drafts:
            self._prompt.past.add(draft)
        if drafts:
            said.append(f"{self._older_key or 'Up'} recalls {len(drafts)} more")
        return f"not sent when the program ended unexpectedly: {'; '.join(said)}" if said else ""

    # ---- estimate and reading ahead

    def note_change(self) -> None:
        """The text in the prompt has changed."""
        self._look_for_files()
        if self._prepared and not self._text.startswith(self._prepared):
            self._bridge.idle_work.drop()
        self._wake()

    def note_free(self) -> None:
        """The engine has nothing to do any more."""
        self._counted = self._prepared = ""
        self.estimator.forget_text()
        meter = self._bridge.status.meter
        if meter is not None:
            self.estimator.learn_read(meter.read_tokens, meter.prefill_s)
        self._wake()

    def note_model(self) -> None:
        """Another model is there, or none."""
        self._counted = self._prepared = ""
        self.estimator.forget_model()
        self._wake()

    def note_count(self, event: PromptCounted) -> None:
        """The engine has counted, and may have read ahead."""
        self._counted = event.text
        self.estimator.learn_count(event.text, event.tokens, event.ready_tokens)
        self.estimator.learn_read(event.read_tokens, event.read_s)
        self._show_estimate(self._text)

    @property
    def _text(self) -> str:
        """The next message as it would be sent now; "" for commands."""
        if self._is_paused:
            return ""
        text = self._prompt.draft.text.strip()
        return "" if text.startswith("/") else text

    def _wake(self) -> None:
        self._quiet_ticks = 0
        if self._timer is None:
            self._timer = call_once(self._prompt, TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        text = self._text
        self._quiet_ticks = self._quiet_ticks + 1 if text == self._seen else 0
        self._seen = text
        self._show_estimate(text)
        is_done = self._use_engine(text)
        if text and (self._quiet_ticks < QUIET_TICKS or not is_done):
            self._timer = call_once(self._prompt, TICK_S, self._tick)

    def _use_engine(self, text: str) -> bool:
        """Ask the engine for what is worth knowing or reading now; False when it should be asked again."""
        if self._turns.is_busy or self._turns.model is None:
            return True
        documents = self._prompt.draft.documents if text else ""
        if documents and not self._prepared.startswith(documents) and may_read_ahead(self._around.settings):
            is_sent = self._turns.read_ahead(documents, is_read=True, is_settled=True)
            self._prepared = documents if is_sent else self._prepared
            return is_sent and len(text) > MAX_CHARS
        if len(text) > MAX_CHARS:
            return True
        is_quiet = self._quiet_ticks >= QUIET_TICKS
        if text != self._prepared and (not text or (is_quiet and may_read_ahead(self._around.settings))):
            is_sent = self._turns.read_ahead(text, is_read=bool(text))
            self._prepared = text if is_sent else self._prepared
            return is_sent
        return not text or text == self._counted or self._turns.read_ahead(text, is_read=False)

    def _show_estimate(self, text: str) -> None:
        is_known = bool(text) and self._turns.model is not None
        self._prompt.show_estimate(self.estimator.line(text) if is_known else "")

    # ---- the user's editor

    async def edit_externally(self, app: App[object]) -> str:
        """Write the message in the user's editor, while replies go on; returns a line to show, or ""."""
        from textual.app import SuspendNotSupported

        from app.tui.external_editor import edit_text

        draft = self._prompt.draft
        try:
            with app.suspend(), app.batch_update():  # nothing is drawn into the editor
                edited = await edit_text(draft.text, os.environ)
        except SuspendNotSupported:
            return "this terminal cannot be lent to an editor"
        except Refusal as refusal:
            return str(refusal)
        if edited != draft.text:
            self._prompt.show_draft(draft.refold(edited))
        return ""
