"""Models in the chat: opened, changed, failed or kept, and the threads they compute with."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from textual.widgets import Static

from app.chat import commands, events
from app.chat.adapters import described
from app.chat.form_choice import FormChoice
from app.chat.generation import GenerationChoice, describe_thinking
from app.conversations.conversation import Conversation
from app.machine.records import EngineFigures, ceiling_at
from app.program.background import in_background
from app.program.bundled_model import WHAT_IT_IS, is_starter
from app.program.refusals import shown_line
from app.program.remote_model import ModelPlace
from app.program.settings import AUTO
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.keymap import Keymap
from app.tui.screens.chat_parts import ChatParts, greeting, welcome_text
from app.tui.screens.conversation_flow import ConversationFlow
from app.tui.textual_hacks import run_last
from app.tui.widgets.prompt import PLACEHOLDER, PLACEHOLDER_LOADING
from app.tuning.threads_in_use import describe


class ModelFlow:
    """Knows which model there is."""

    def __init__(self, parts: ChatParts, conversations: ConversationFlow) -> None:
        self._parts = parts
        self._conversations = conversations
        self._is_greeted = self._has_told_machine = False
        self._offered_in: Conversation | None = None
        """The conversation in which a larger model was named."""
        self._goes_on = False
        """Whether the model is opened for the conversation of the last start, which has a line of its own."""
        self._name = parts.screen.query_one("#model-name", Static)

    def load(self, path: ModelPlace, keeps: bool = False, rereads: bool = True) -> bool:
        """Begin to open a model; False while the engine is busy."""
        self._goes_on = keeps and not rereads
        begins = self._parts.turns.load(path, keeps, rereads)
        if begins:
            self._parts.prompt.placeholder = PLACEHOLDER_LOADING
        return begins

    async def show_model(self, message: events.ModelLoaded, is_new: bool) -> None:
        """Name the model and answer what was sent meanwhile; ``is_new``: a conversation begins with it."""
        if is_new:
            await self._conversations.clear_transcript()
        self._parts.prompt.placeholder = PLACEHOLDER
        self._show_name()
        if not self._goes_on:
            self._introduce(message)
        # Markdown takes a tenth of a second to import: before the first reply, and after the first frame.
        self._parts.screen.call_after_refresh(partial(import_module, "app.tui.widgets.reply_body"))
        self.tell_machine()

    def greet(self) -> None:
        """Greet the user of the starter model, while it is opened."""
        self._is_greeted = True
        self._parts.notes.note(greeting(self._parts.keymap), kind="greeting")

    def tell_machine(self, event: events.GenerationFinished | events.MemoryMeasured | None = None) -> None:
        """Say what suits this machine, after the greeting; after a reply it is measured, if need be."""
        if self._is_greeted and not self._has_told_machine:
            run_last(self._parts.screen, "machine", partial(self._tell_machine, event))

    async def _tell_machine(self, event: events.GenerationFinished | events.MemoryMeasured | None) -> None:
        in_use = self._parts.bridge.threads
        measured = event if isinstance(event, events.MemoryMeasured) else events.MemoryMeasured(0.0)
        get_key = self._parts.keymap.key_or_command("app.get")
        tell = partial(_line_of_machine, in_use.now.decode if in_use else 0, get_key, measured)
        line = await wrap_future(in_background(tell, "machine"))
        # Gives way to whatever is asked: it is measured after the next reply, then.
        if not line and isinstance(event, events.GenerationFinished):
            self._parts.bridge.measure_bandwidth()
        if line and not self._has_told_machine:
            self._has_told_machine = True
            self._parts.notes.note(f"{line}; {where_models_are(self._parts.keymap)} lists more")

    def tell_of_real_one(self) -> None:
        """After an answer that the starter model has not, name a model that has it, once a conversation."""
        from app.chat.fence import is_declined  # no first frame waits for it

        turns = self._parts.turns
        if self._offered_in is turns.conversation or turns.model is None or not is_starter(turns.model.path):
            return
        if turns.last_message is not None and is_declined(turns.last_message.text):
            self._offered_in = turns.conversation
            self._parts.screen.run_worker(self._tell_of_real_one(), group="real model")

    async def _tell_of_real_one(self) -> None:
        from app.library.known import real_model_line

        get_key, models_key = map(self._parts.keymap.key_or_command, ("app.get", "app.models"))
        tell = partial(real_model_line, self._parts.around.settings, get_key, models_key)
        if line := await wrap_future(in_background(tell, "real model")):
            self._parts.notes.note(line)

    def _introduce(self, message: events.ModelLoaded) -> None:
        if is_starter(message.path):
            if not self._is_greeted:
                self._parts.notes.note(
                    f"{WHAT_IT_IS}. {where_models_are(self._parts.keymap)} finds and gets a real one."
                )
        elif self._parts.turns.conversation.is_empty:
            self._welcome(message)
        else:
            self._parts.notes.note(_sizes_of(message))
        for line in message.notices:
            self._parts.notes.note(line)

    def _welcome(self, message: events.ModelLoaded) -> None:
        """Begin the chat of a real model: its name, its speed here, and what to try."""
        keymap, speed = self._parts.keymap, _speed_here(self._parts.bridge.figures)
        things = [("type", "a question, or / for commands"), ("@name", "asks about a file: text or PDF")]
        if last := self._conversations.offer_last(message.path):
            things.insert(0, (keymap.first_key("prompt.send"), f"goes on with {last}"))
        name = " · ".join(filter(None, (message.name, message.quantization, speed)))
        self._parts.notes.note(welcome_text(keymap, f"{name}\n{_sizes_of(message)}", *things), kind="greeting")

    def show_change(self, event: events.Event) -> None:
        """Show what became of a model or its threads."""
        if isinstance(event, events.ModelFailed):
            self._show_load_failure(event)
        elif isinstance(event, events.ModelKept):
            self._show_kept_model(event)
        elif isinstance(event, events.ConversationReread):
            self._end_rereading(event)
        elif isinstance(event, events.ThreadsChanged):
            self._show_threads(event)
        elif isinstance(event, events.AdaptersChanged):
            self._parts.notes.note(commands.told_adapters(event), is_error=bool(event.trouble))
            self._show_name()
        elif isinstance(event, events.MemoryMeasured):
            self.tell_machine(event)
        elif isinstance(event, events.TuningDoubted):
            self._doubt_tuning(event)
        elif isinstance(event, events.TuningEnded):
            self._end_tuning(event)

    def _end_rereading(self, message: events.ConversationReread) -> None:
        """Say what the model has read, and answer what was sent meanwhile."""
        read, total = figures.count(message.read_tokens), figures.count(message.total_tokens)
        if message.restored_tokens:
            saved = figures.count(message.restored_tokens)
            self._parts.notes.note(f"resumed {saved} of {total} tokens: this model had read them before")
        if message.trouble:
            self._parts.notes.note(message.trouble, is_error=True)
        elif message.read_tokens < message.total_tokens:
            self._parts.notes.note(
                f"read {read} of {total} tokens of the conversation; the rest is read with the next message"
            )
        else:
            newly = figures.count(message.read_tokens - message.restored_tokens)
            if newly != "0":
                self._parts.notes.note(
                    f"read the conversation again: {newly} tokens in {figures.seconds(message.read_s)}"
                )

    def _show_load_failure(self, message: events.ModelFailed) -> None:
        """Say why there is no model."""
        self._parts.prompt.placeholder = PLACEHOLDER
        self._name.update("")
        self._parts.notes.note(message.reason, is_error=True)
        self._parts.notes.note(how_to_load(self._parts.keymap))

    def _show_kept_model(self, message: events.ModelKept) -> None:
        """Say why there is no other model."""
        stays = "the model from before stays open" if message.is_open else "opening the model from before again"
        self._parts.notes.note(f"{message.reason}; {stays}", is_error=True)
        if message.is_open:
            self._parts.prompt.placeholder = PLACEHOLDER

    def _show_threads(self, message: events.ThreadsChanged) -> None:
        """Say which threads compute now."""
        before, now = message.before.now, message.in_use.now
        was = f" (was {before.decode} and {before.prefill})" if before != now else ""
        self._parts.notes.note(f"from now on {describe(now)}{was}")
        if message.trouble:
            self._parts.notes.note(message.trouble, is_error=True)

    def wish_thinking(self, wanted: str) -> None:
        """Have the model think more or less from the next message on."""
        with self._parts.notes.telling_refusals():
            if self._parts.turns.model is None:
                self._parts.notes.note(how_to_load(self._parts.keymap))
            else:
                self._parts.notes.note(commands.choose_thinking(self._parts.bridge, self._parts.turns, wanted))
        self._show_name()

    def choose(self, choice: GenerationChoice | FormChoice | None, wanted: str = "") -> None:
        """Show generation parameters or the form of answers, or choose others from the next message on."""
        if choice is None:
            self._parts.notes.note(how_to_load(self._parts.keymap))
            return
        if isinstance(choice, FormChoice):
            self._parts.screen.run_worker(self._choose_form(choice, wanted), group="form")
            return
        with self._parts.notes.telling_refusals():
            self._parts.notes.note(choice.obey(wanted))
        self._show_name()

    async def _choose_form(self, choice: FormChoice, wanted: str) -> None:
        """The same; whether a form can be used takes a process a while to say."""
        with self._parts.notes.telling_refusals():
            self._parts.notes.note(await wrap_future(in_background(partial(choice.obey, wanted), "form")))
        self._show_name()

    def _show_name(self) -> None:
        model, mode = self._parts.turns.model, self._parts.bridge.thinking
        if model is not None:
            thinking = describe_thinking(mode) if mode not in ("", AUTO) else ""
            chosen = (
                one.described() for one in (self._parts.bridge.generation, self._parts.bridge.form) if one is not None
            )
            adapters = described(self._parts.turns.conversation.adapters)
            parts = model.name, model.quantization, model.server, adapters, thinking, *chosen
            self._name.update(" · ".join(filter(None, parts)))

    def _doubt_tuning(self, message: events.TuningDoubted) -> None:
        """Suggest to measure again."""
        self._parts.notes.note(f"{message.reason}: {self._parts.keymap.key_or_command('app.tune')} measures again")

    def _end_tuning(self, message: events.TuningEnded) -> None:
        """Answer what was sent meanwhile."""
        if message.trouble:
            self._parts.notes.note(f"threads could not be measured: {message.trouble}", is_error=True)

    def open_wanted(self, wanted: str = "") -> None:
        """Load another model, after asking what becomes of the conversation."""
        if wanted:
            run_last(self._parts.screen, "model", partial(self._look_and_open, wanted))
        else:
            self._parts.prompt.begin_command("model")

    async def _look_and_open(self, wanted: str) -> None:
        """Look whether there is such a file before anything is asked about it."""
        find = partial(_find_model, wanted, self._parts.around.settings.model_directories)
        try:
            path = await wrap_future(in_background(find, "model"))
            await wrap_future(self._parts.bridge.glance_at(path))
        except Exception as error:
            self._parts.notes.note(shown_line(error), is_error=True)
            return
        if not self._parts.around.open_model(path, clean_line(path.name)):
            self._parts.notes.note_busy()

    def wish_adapters(self, wanted: str) -> None:
        """Show the adapters that change the model, or use others from the next message on."""
        with self._parts.notes.telling_refusals():
            chosen = commands.wanted_adapters(self._parts.turns, wanted)
            if isinstance(chosen, str):
                self._parts.notes.note(chosen)
            elif not self._parts.turns.use_adapters(chosen):
                self._parts.notes.note_busy()

    def wish_threads(self, wanted: str = "") -> None:
        """Show the threads, or use others from the next token on; remembered only by the tuning screen."""
        if self._parts.bridge.threads is None and not (
            self._parts.turns.model is not None and self._parts.turns.model.server
        ):
            self._parts.notes.note(how_to_load(self._parts.keymap))
            return
        finds_best = f"{self._parts.keymap.key_or_command('app.tune')} finds the best and remembers it"
        with self._parts.notes.telling_refusals():
            chosen = commands.wanted_threads(self._parts.bridge, self._parts.turns, wanted, finds_best)
            if isinstance(chosen, str):
                self._parts.notes.note(chosen)
            else:
                self._parts.bridge.wish_threads(chosen)

    async def switch_model(self, path: ModelPlace, keeps: bool) -> None:
        """Load another model and begin a new conversation with it, or keep this one, which it reads first."""
        if not self.load(path, keeps):
            self._parts.notes.note_busy()
            return
        if self._parts.turns.conversation.is_empty:
            await self._conversations.clear_transcript()
        self._parts.focus.to_prompt()
        goes_on = "it reads the conversation first" if isinstance(path, Path) else "the conversation goes there"
        self._parts.notes.note(f"loading {clean_line(path.name)}; {goes_on if keeps else 'a new conversation'}")


def _sizes_of(model: events.ModelLoaded) -> str:
    context = f" · context {figures.count(model.n_ctx)} tokens" if model.n_ctx else ""
    if model.server:
        return f"computed by {model.server}{context}"
    return f"weights {figures.size(model.weights_bytes)}{context}, {figures.size(model.kv_bytes)} of memory"


def _speed_here(known: EngineFigures) -> str:
    """Say how fast the model writes on this machine, as far as that is known."""
    if known.earlier is not None:
        return f"usually {figures.rate(known.earlier.median_tps)} tok/s here"
    limit = ceiling_at(known.facts, 0, known.read_gbps.get(known.threads))
    return f"at most {figures.rate(limit.tps)} tok/s here" if limit is not None else ""


def where_models_are(keymap: Keymap) -> str:
    """Name the key or the command that lists models."""
    key = keymap.first_key("app.models")
    return f"{key} or /models" if key else "/models"


def how_to_load(keymap: Keymap) -> str:
    """Return the line for a chat without a model."""
    where = where_models_are(keymap)
    return f"No model is loaded: {where} shows what is on this machine and what fits; /model PATH opens a file"


def _find_model(wanted: str, directories: Sequence[str]) -> Path:
    from app.library.named import named_model  # no first frame waits for it

    return named_model(wanted, directories)


def _line_of_machine(threads: int, get_key: str, measured: events.MemoryMeasured) -> str:
    from app.library.known import machine_line  # no first frame waits for it

    return machine_line(threads, get_key, measured.read_gbps, measured.is_quiet)
