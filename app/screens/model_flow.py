"""Models in the chat: opened, changed, failed or kept, and the threads they compute with."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual.content import Content
from textual.widgets import Static

from app import figures
from app.clean_text import clean_line
from app.events import (
    ConversationReread,
    ModelFailed,
    ModelKept,
    ModelLoaded,
    ThreadsChanged,
    TuningDoubted,
    TuningEnded,
)
from app.screens.conversation_flow import ConversationFlow
from app.starter import WHAT_IT_IS, is_starter, model_path
from app.thread_command import describe
from app.widgets.prompt import PLACEHOLDER, PLACEHOLDER_LOADING

if TYPE_CHECKING:
    from app.app import JalopyApp


class ModelFlow(ConversationFlow):
    """The part of the chat that knows which model there is."""

    @property
    def _jalopy(self) -> JalopyApp:
        return cast("JalopyApp", self.app)

    def _how_to_load(self) -> str:
        shown = self._where_models_are()
        return f"No model is loaded: {shown} shows what is on this machine and what fits; /model PATH opens a file"

    def _where_models_are(self) -> str:
        key = self._habits.keymap.first_key("app.models")
        return f"{key} or /models" if key else "/models"

    def _load(self, path: Path, keeps: bool = False, rereads: bool = True) -> bool:
        begins = self.turns.load(path, keeps, rereads)
        if begins:
            self.prompt.placeholder = PLACEHOLDER_LOADING
        return begins

    async def show_model(self, message: ModelLoaded) -> None:
        """Name the model and answer what was sent meanwhile."""
        if self.turns.begins_anew:
            await self._clear_transcript()
        self.turns.note_loaded(message)
        self.prompt.placeholder = PLACEHOLDER
        self.query_one("#model-name", Static).update(Content(f"{message.name} · {message.quantization}"))
        self.note(
            f"weights {figures.size(message.weights_bytes)} · context {figures.count(message.n_ctx)} tokens, "
            f"{figures.size(message.kv_bytes)} of memory"
        )
        if is_starter(message.path):
            self.note(f"{WHAT_IT_IS}. {self._where_models_are()} finds and gets a real one.")
        for line in message.notices:
            self.note(line)
        self.drafting.note_model()
        self._ask_next()
        self.call_after_refresh(_import_reply_widgets)

    def end_rereading(self, message: ConversationReread) -> None:
        """Say what the model has read, and answer what was sent meanwhile."""
        self.turns.note_reread()
        read, total = figures.count(message.read_tokens), figures.count(message.total_tokens)
        if message.restored_tokens:
            saved = figures.count(message.restored_tokens)
            self.note(f"resumed {saved} of {total} tokens: this model had read them before")
        if message.trouble:
            self.note(message.trouble, is_error=True)
        elif message.read_tokens < message.total_tokens:
            self.note(f"read {read} of {total} tokens of the conversation; the rest is read with the next message")
        else:
            newly = figures.count(message.read_tokens - message.restored_tokens)
            if newly != "0":
                self.note(f"read the conversation again: {newly} tokens in {figures.seconds(message.read_s)}")
        self._ask_next()

    def show_load_failure(self, message: ModelFailed) -> None:
        """Say why there is no model."""
        self.turns.note_load_failed()
        self.prompt.placeholder = PLACEHOLDER
        self.query_one("#model-name", Static).update(Content(""))
        self.note(message.reason, is_error=True)
        self.note(self._how_to_load())

    def show_kept_model(self, message: ModelKept) -> None:
        """Say why there is no other model."""
        self.turns.note_model_kept(message.is_open)
        stays = "the model from before stays open" if message.is_open else "opening the model from before again"
        self.note(f"{message.reason}; {stays}", is_error=True)
        if message.is_open:
            self.prompt.placeholder = PLACEHOLDER
            self._ask_next()

    def show_threads(self, message: ThreadsChanged) -> None:
        """Say which threads compute now."""
        before, now = message.before.now, message.in_use.now
        was = f" (was {before.decode} and {before.prefill})" if before != now else ""
        self.note(f"from now on {describe(now)}{was}")
        if message.trouble:
            self.note(message.trouble, is_error=True)

    def doubt_tuning(self, message: TuningDoubted) -> None:
        """Suggest to measure again."""
        self.note(f"{message.reason}: {self._habits.keymap.key_or_command('app.tune')} measures again")

    def end_tuning(self, message: TuningEnded) -> None:
        """Answer what was sent meanwhile."""
        self.turns.note_tuned()
        if message.trouble:
            self.note(f"threads could not be measured: {message.trouble}", is_error=True)
        self._ask_next()

    def action_model(self, wanted: str = "") -> None:
        """Load another model, after asking what becomes of the conversation."""
        if not wanted:
            self.prompt.show_text("/model ")
            return
        path = model_path(wanted)
        if not self._jalopy.open_model(path, clean_line(path.name)):
            self._note_busy()

    async def switch_model(self, path: Path, keeps: bool) -> None:
        """Load another model and begin a new conversation with it, or go on with this one.

        Args:
            keeps: go on: the model reads the conversation first.
        """
        if not self._load(path, keeps):
            self._note_busy()
            return
        if self.turns.conversation.is_empty:
            await self._clear_transcript()
        self._go_to_prompt()
        consequence = "it reads the conversation first" if keeps else "a new conversation"
        self.note(f"loading {clean_line(path.name)}; {consequence}")


def _import_reply_widgets() -> None:
    """Markdown takes a tenth of a second to import: before the first reply, and behind the first frame."""
    import_module("app.widgets.reply_body")
