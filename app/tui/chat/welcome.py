"""Lines for the beginning of a chat: a greeting, and which models suit this machine."""

from __future__ import annotations

from asyncio import wrap_future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.conversation import Conversation
from app.machine.sensors.reply_history import PastSpeeds
from app.models.library.speed import speed_text, writing_text
from app.program.background import in_background
from app.program.bundled_model import WHAT_IT_IS, is_starter
from app.program.settings import Settings
from app.session.events import GenerationFinished, MemoryMeasured, ModelLoaded
from app.text import figures
from app.text.clean_text import clean_text
from app.tui.chat.core import ChatCore
from app.tui.chat.transcript import Entry
from app.tui.textual_hacks import run_last
from app.tui.widgets.message_view import Note

if TYPE_CHECKING:
    from app.models.library.listing import Outlook

FIRST_QUESTION = "What is the capital of Peru?"


class Welcome:
    """Greets users of the starter model, and introduces models that are opened."""

    def __init__(self, core: ChatCore) -> None:
        self._core = core
        self._has_greeted = False
        self._has_described_machine = False
        self._real_model_named_in: Conversation | None = None
        """The conversation in which a larger model was named."""

    def greet(self) -> None:
        """Greet a user of the starter model while the model is opened."""
        self._has_greeted = True
        hello = f"Hello! Everything runs on your computer. {WHAT_IT_IS}."
        get_key = self._core.keymap.key_or_command("app.get")
        question = "type", FIRST_QUESTION
        download = get_key, "gets a real model, while you chat"
        self._core.say(self._greeting(hello, question, download), style="greeting")

    def introduce_starter(self) -> None:
        """Say what the starter model is, unless it was greeted."""
        if not self._has_greeted:
            self._core.say(f"{WHAT_IT_IS}. {self._core.lists_models} finds and gets a real one.")

    def introduce(self, model: ModelLoaded, last_conversation: str) -> None:
        """Name a model that was opened, its speed, and things to try.

        Args:
            last_conversation: title of the conversation that Enter opens; "" for none.
        """
        before = self._core.transcript.settled_entries()
        introduce = partial(self._introduce, model, last_conversation, before)
        run_last(self._core.screen, "introduction", introduce)

    async def _introduce(
        self, model: ModelLoaded, last_conversation: str, before: list[Entry]
    ) -> None:
        outlook = None
        earlier = self._core.engine_thread.state.figures.earlier
        if earlier is None and not model.server:
            from app.models.library.listing import look_up  # the first frame does not need it

            outlook = await wrap_future(look_up(Path(model.path), self._core.settings))
        if model is not self._core.chat_session.model:
            return
        speed = _speed_line(earlier, outlook)
        kinds = "text or PDF"
        if model.sees_pictures and not model.server:
            kinds = "text, PDF or picture"
        suggestions = [
            ("type", "a question, or / for commands"),
            ("@name", f"asks about a file: {kinds}"),
        ]
        name = " · ".join(filter(None, (model.name, model.quantization, speed)))
        text = self._greeting(f"{name}\n{size_line(model)}", *suggestions)
        note = Note(clean_text(text), "greeting")
        if last_conversation and not self._has_begun:
            send_key = self._core.keymap.first_key("prompt.send")
            offer = send_key, f"continues {last_conversation}"
            offering_text = self._greeting(f"{name}\n{size_line(model)}", offer, *suggestions)
            note = Note(clean_text(offering_text), "greeting", clean_text(text))
        # a message that was sent meanwhile stays below
        self._core.transcript.add_after(before, note)

    @property
    def _has_begun(self) -> bool:
        """Whether a message was sent."""
        core = self._core
        return bool(core.transcript.waiting) or not core.chat_session.conversation.is_empty

    def _greeting(self, text: str, *suggestions: tuple[str, str]) -> str:
        """Return a text with suggestions below it, each with its key."""
        speed_key = self._core.keymap.first_key("app.performance") or "/stats"
        suggestions = *suggestions, (speed_key, "shows the speed")
        width = max(len(key) for key, _ in suggestions)
        rows = [f"  {key:<{width}}  {suggestion}" for key, suggestion in suggestions]
        return "\n".join([text, "", "Try:", *rows])

    # ---- larger models

    def describe_machine(self, event: GenerationFinished | MemoryMeasured | None = None) -> None:
        """Say once after the greeting which models suit this machine.

        If the speed of memory is not known after a reply, it is measured first.
        """
        if self._has_greeted and not self._has_described_machine:
            describe = partial(self._describe_machine, event)
            run_last(self._core.screen, "machine", describe)

    async def _describe_machine(self, event: GenerationFinished | MemoryMeasured | None) -> None:
        core = self._core
        measured = event if isinstance(event, MemoryMeasured) else MemoryMeasured(0.0)
        get_key = core.keymap.key_or_command("app.get")
        make_line = partial(_machine_line, core.settings, get_key, measured)
        line = await wrap_future(in_background(make_line, "machine"))
        # A request interrupts the measurement; it is repeated after the next reply.
        if not line and isinstance(event, GenerationFinished):
            core.engine_thread.measure_bandwidth()
        if line and not self._has_described_machine:
            self._has_described_machine = True
            core.say(f"{line}; {core.lists_models} lists more")

    def name_real_model(self) -> None:
        """After a reply of the starter model that declines, name a model that could answer.

        This is said once for each conversation.
        """
        from app.reply.starter_fence import is_declined  # not needed for the first frame

        chat_session = self._core.chat_session
        is_named = self._real_model_named_in is chat_session.conversation
        if is_named or chat_session.model is None or not is_starter(chat_session.model.path):
            return
        if chat_session.last_message is not None and is_declined(chat_session.last_message.text):
            self._real_model_named_in = chat_session.conversation
            self._core.screen.run_worker(self._name_real_model(), group="real model")

    async def _name_real_model(self) -> None:
        from app.models.library.known_models import real_model_line

        keymap = self._core.keymap
        get_key = keymap.key_or_command("app.get")
        models_key = keymap.key_or_command("app.models")
        make_line = partial(real_model_line, self._core.settings, get_key, models_key)
        line = await wrap_future(in_background(make_line, "real model"))
        if line:
            self._core.say(line)


def size_line(model: ModelLoaded) -> str:
    """Return a line on the size of a model and its context."""
    room = f" · room for {figures.count(model.n_ctx)} tokens" if model.n_ctx else ""
    if model.server:
        return f"runs on {model.server}{room}"
    weights = figures.size(model.weights_bytes)
    return f"{weights} model{room} ({figures.size(model.kv_bytes)})"


def _speed_line(earlier: PastSpeeds | None, outlook: Outlook | None) -> str:
    """Return how fast the open model writes on this machine; "" if that is not known."""
    if earlier is not None:
        return f"usually {writing_text(earlier.usual)}"
    if outlook is not None and outlook.decode_tps:
        return speed_text(outlook.decode_tps, outlook.basis)
    return ""


def _machine_line(settings: Settings, get_key: str, measured: MemoryMeasured) -> str:
    from app.models.library.known_models import machine_line  # not needed for the first frame

    return machine_line(settings, get_key, measured.read_gbps, measured.is_quiet)
