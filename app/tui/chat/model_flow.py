"""Models in the chat: opened, changed, failed or kept, and the threads they compute with."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.conversation import Conversation
from app.forms.choice import FormChoice
from app.machine.sensors.records import EngineFigures, ceiling_at
from app.machine.tuning.threads_in_use import describe
from app.program.background import in_background
from app.program.bundled_model import WHAT_IT_IS, is_starter
from app.program.refusals import shown_line
from app.program.remote_model import ModelPlace
from app.program.settings import AUTO
from app.session import commands, events
from app.session.adapters import described
from app.session.generation import describe_thinking
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.actions import CHAT
from app.tui.chat.conversation_flow import ConversationFlow
from app.tui.screens import make_screen
from app.tui.textual_hacks import run_last
from app.tui.widgets.prompt import PLACEHOLDER, PLACEHOLDER_LOADING

if TYPE_CHECKING:
    from app.models.library.listing import Outlook

FIRST_QUESTION = "What is the capital of Peru?"


class ModelFlow(ConversationFlow):
    """Knows which model there is."""

    _is_greeted = _has_told_machine = False
    _named_real_one_in: Conversation | None = None
    """The conversation in which a larger model was named."""
    _goes_on = False
    """Whether the model is opened for the conversation of the last start, which has a line of its
    own."""

    def load(self, path: ModelPlace, keeps: bool = False, rereads: bool = True) -> bool:
        """Begin to open a model; False while the engine is busy."""
        self._goes_on = keeps and not rereads
        begins = self.chat_session.load(path, keeps, rereads)
        if begins:
            self.prompt.placeholder = PLACEHOLDER_LOADING
        return begins

    async def show_model(self, message: events.ModelLoaded, is_new: bool) -> None:
        """Name the model and answer what was sent meanwhile; ``is_new``: a conversation begins with
        it."""
        if is_new:
            await self.clear_transcript()
        self.prompt.placeholder = PLACEHOLDER
        self._show_name()
        if not self._goes_on:
            self._introduce(message)
        # Markdown takes a tenth of a second to import: before the first reply, and after the first
        # frame.
        self.call_after_refresh(partial(import_module, "app.tui.widgets.reply_body"))
        self.tell_machine()

    def greet(self) -> None:
        """Greet the user of the starter model, while it is opened."""
        self._is_greeted = True
        hello = f"Hello! All of this is computed on your own machine. {WHAT_IT_IS}."
        gets = self.keymap.key_or_command("app.get"), "gets a real model, while you chat"
        self.note(self._welcome_text(hello, ("type", FIRST_QUESTION), gets), kind="greeting")

    def tell_machine(
        self, event: events.GenerationFinished | events.MemoryMeasured | None = None
    ) -> None:
        """Say what suits this machine, after the greeting; after a reply it is measured, if need
        be."""
        if self._is_greeted and not self._has_told_machine:
            run_last(self, "machine", partial(self._tell_machine, event))

    async def _tell_machine(
        self, event: events.GenerationFinished | events.MemoryMeasured | None
    ) -> None:
        in_use = self.engine_thread.state.threads
        if isinstance(event, events.MemoryMeasured):
            measured = event
        else:
            measured = events.MemoryMeasured(0.0)
        get_key = self.keymap.key_or_command("app.get")
        tell = partial(_line_of_machine, in_use.now.decode if in_use else 0, get_key, measured)
        line = await wrap_future(in_background(tell, "machine"))
        # Gives way to whatever is asked: it is measured after the next reply, then.
        if not line and isinstance(event, events.GenerationFinished):
            self.engine_thread.measure_bandwidth()
        if line and not self._has_told_machine:
            self._has_told_machine = True
            self.note(f"{line}; {self.lists_models} lists more")

    def tell_of_real_one(self) -> None:
        """After an answer that the starter model has not, name a model that has it, once a
        conversation."""
        from app.reply.starter_fence import is_declined  # no first frame waits for it

        chat_session = self.chat_session
        if (
            self._named_real_one_in is chat_session.conversation
            or chat_session.model is None
            or not is_starter(chat_session.model.path)
        ):
            return
        if chat_session.last_message is not None and is_declined(chat_session.last_message.text):
            self._named_real_one_in = chat_session.conversation
            self.run_worker(self._tell_of_real_one(), group="real model")

    async def _tell_of_real_one(self) -> None:
        from app.models.library.known_models import real_model_line

        get_key, models_key = map(self.keymap.key_or_command, ("app.get", "app.models"))
        tell = partial(real_model_line, self.settings, get_key, models_key)
        if line := await wrap_future(in_background(tell, "real model")):
            self.note(line)

    def _introduce(self, message: events.ModelLoaded) -> None:
        if is_starter(message.path):
            if not self._is_greeted:
                self.note(f"{WHAT_IT_IS}. {self.lists_models} finds and gets a real one.")
        elif self.chat_session.conversation.is_empty:
            self._welcome(message)
        else:
            self.note(_sizes_of(message))
        for line in message.notices:
            self.note(line)

    def _welcome(self, message: events.ModelLoaded) -> None:
        """Begin the chat of a real model: its name, its speed here, and what to try."""
        speed = _speed_here(self.engine_thread.state.figures)
        things = [
            ("type", "a question, or / for commands"),
            ("@name", "asks about a file: text or PDF"),
        ]
        if last := self.offer_last(message.path):
            things.insert(0, (self.keymap.first_key("prompt.send"), f"goes on with {last}"))
        name = " · ".join(filter(None, (message.name, message.quantization, speed)))
        self.note(self._welcome_text(f"{name}\n{_sizes_of(message)}", *things), kind="greeting")

    def _welcome_text(self, what_this_is: str, *things: tuple[str, str]) -> str:
        """Return what a chat begins with: what this is, and things to try, each with its key; the
        speed is the last."""
        things = *things, (self.keymap.first_key("app.performance") or "/stats", "shows the speed")
        widest = max(len(key) for key, _ in things)
        return "\n".join(
            [what_this_is, "", "Try:", *(f"  {key:<{widest}}  {what}" for key, what in things)]
        )

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
            self.note(commands.told_adapters(event), is_error=bool(event.trouble))
            self._show_name()
        elif isinstance(event, events.MemoryMeasured):
            self.tell_machine(event)
        elif isinstance(event, events.TuningDoubted):
            self.note(f"{event.reason}: {self.keymap.key_or_command('app.tune')} measures again")
        elif isinstance(event, events.TuningEnded) and event.trouble:
            self.note(f"threads could not be measured: {event.trouble}", is_error=True)

    def _end_rereading(self, message: events.ConversationReread) -> None:
        """Say what the model has read, and answer what was sent meanwhile."""
        read = figures.count(message.read_tokens)
        total = figures.count(message.total_tokens)
        if message.restored_tokens:
            saved = figures.count(message.restored_tokens)
            self.note(f"resumed {saved} of {total} tokens: this model had read them before")
        if message.trouble:
            self.note(message.trouble, is_error=True)
        elif message.read_tokens < message.total_tokens:
            self.note(
                f"read {read} of {total} tokens of the conversation; "
                "the rest is read with the next message"
            )
        else:
            newly = figures.count(message.read_tokens - message.restored_tokens)
            if newly != "0":
                self.note(
                    f"read the conversation again: {newly} tokens in "
                    f"{figures.seconds(message.read_s)}"
                )

    def _show_load_failure(self, message: events.ModelFailed) -> None:
        """Say why there is no model."""
        self.prompt.placeholder = PLACEHOLDER
        self.model_name.update("")
        self.note(message.reason, is_error=True)
        self.note_no_model()

    def _show_kept_model(self, message: events.ModelKept) -> None:
        """Say why there is no other model."""
        if message.is_open:
            stays = "the model from before stays open"
        else:
            stays = "opening the model from before again"
        self.note(f"{message.reason}; {stays}", is_error=True)
        if message.is_open:
            self.prompt.placeholder = PLACEHOLDER

    def _show_threads(self, message: events.ThreadsChanged) -> None:
        """Say which threads compute now."""
        before = message.before.now
        now = message.in_use.now
        if before != now:
            was = f" (was {before.decode} and {before.prefill})"
        else:
            was = ""
        self.note(f"from now on {describe(now)}{was}")
        if message.trouble:
            self.note(message.trouble, is_error=True)

    def action_thinking(self, wanted: str = "") -> None:
        """Have the model think more or less; without a word, show or fold its last thought."""
        if not wanted:
            self.toggle_last_thinking()
            return
        with self.telling_refusals():
            self.note(commands.choose_thinking(self.engine_thread, self.chat_session, wanted))
        self._show_name()

    def action_set(self, wanted: str = "") -> None:
        """Show or choose generation parameters, from the next message on."""
        if self.engine_thread.generation is not None:
            with self.telling_refusals():
                self.note(self.engine_thread.generation.obey(wanted))
            self._show_name()
        else:
            self.note_no_model()

    def action_schema(self, wanted: str = "") -> None:
        """Show or choose the form of answers, from the next message on."""
        if self.engine_thread.form is not None:
            self.run_worker(self._choose_form(self.engine_thread.form, wanted), group="form")
        else:
            self.note_no_model()

    async def _choose_form(self, choice: FormChoice, wanted: str) -> None:
        """The same; whether a form can be used takes a process a while to say."""
        with self.telling_refusals():
            self.note(await wrap_future(in_background(partial(choice.obey, wanted), "form")))
        self._show_name()

    def _show_name(self) -> None:
        model = self.chat_session.model
        mode = self.engine_thread.inbox.thinking
        if model is not None:
            if mode not in ("", AUTO):
                thinking = describe_thinking(mode)
            else:
                thinking = ""
            chosen = (
                one.described()
                for one in (self.engine_thread.generation, self.engine_thread.form)
                if one is not None
            )
            adapters = described(self.chat_session.conversation.adapters)
            parts = model.name, model.quantization, model.server, adapters, thinking, *chosen
            self.model_name.update(" · ".join(filter(None, parts)))

    def action_model(self, wanted: str = "") -> None:
        """Open another model, after asking what becomes of the conversation."""
        if wanted:
            run_last(self, "model", partial(self._look_and_open, wanted))
        else:
            self.prompt.begin_command("model")

    async def _look_and_open(self, wanted: str) -> None:
        """Look whether there is such a file before anything is asked about it."""
        find = partial(_find_model, wanted, self.settings.model_directories)
        try:
            path = await wrap_future(in_background(find, "model"))
            await wrap_future(self.engine_thread.glance_at(path))
        except Exception as error:
            self.note(shown_line(error), is_error=True)
            return
        if not self.open_model(path, clean_line(path.name)):
            self.note(self.busy_line())

    def action_lora(self, wanted: str = "") -> None:
        """Show the adapters that change the model, or use others from the next message on."""
        with self.telling_refusals():
            chosen = commands.wanted_adapters(self.chat_session, wanted)
            if isinstance(chosen, str):
                self.note(chosen)
            elif not self.chat_session.use_adapters(chosen):
                self.note(self.busy_line())

    def action_threads(self, wanted: str = "") -> None:
        """Show the threads, or use others from the next token on; remembered only by the tuning
        screen."""
        finds_best = f"{self.keymap.key_or_command('app.tune')} finds the best and remembers it"
        with self.telling_refusals():
            chosen = commands.wanted_threads(
                self.engine_thread, self.chat_session, wanted, finds_best
            )
            if isinstance(chosen, str):
                self.note(chosen)
            else:
                self.engine_thread.request_threads(chosen)

    def open_model(self, path: ModelPlace, title: str, outlook: Outlook | None = None) -> bool:
        """Open a model, after asking what becomes of a conversation; False while the engine is
        busy.

        The title is clean; without an outlook its speed is looked up.
        """
        if self.chat_session.is_busy:
            return False
        if self.chat_session.conversation.is_empty:
            self._open_in_chat(path, "new")
        else:
            run_last(self, "switch", partial(self._ask_about_conversation, path, title, outlook))
        return True

    async def _ask_about_conversation(
        self, path: ModelPlace, title: str, outlook: Outlook | None
    ) -> None:
        from app.models.library.listing import look_up

        if outlook is None and isinstance(path, Path):
            outlook = await wrap_future(look_up(path, self.settings))
        tokens = self.engine_thread.status.context_used
        if outlook:
            prefill_tps = outlook.prefill_tps
        else:
            prefill_tps = None
        if isinstance(path, Path):
            host = ""
        else:
            host = path.host
        question = make_screen(
            "question", title, tokens, prefill_tps, self.keymap, host, kind="SwitchModelScreen"
        )
        self.app.push_screen(question, partial(self._open_in_chat, path))

    def _open_in_chat(self, path: ModelPlace, answer: str | None) -> None:
        if answer is not None:
            if self.app.current_mode != CHAT:
                self.app.switch_mode(CHAT)
            self.call_later(self._switch_model, path, answer == "keep")

    async def _switch_model(self, path: ModelPlace, keeps: bool) -> None:
        """Load another model and begin a new conversation with it, or keep this one, which it reads
        first."""
        if not self.load(path, keeps):
            self.note(self.busy_line())
            return
        if self.chat_session.conversation.is_empty:
            await self.clear_transcript()
        self.focus_prompt()
        if isinstance(path, Path):
            goes_on = "it reads the conversation first"
        else:
            goes_on = "the conversation goes there"
        self.note(f"loading {clean_line(path.name)}; {goes_on if keeps else 'a new conversation'}")


def _sizes_of(model: events.ModelLoaded) -> str:
    if model.n_ctx:
        context = f" · context {figures.count(model.n_ctx)} tokens"
    else:
        context = ""
    if model.server:
        return f"computed by {model.server}{context}"
    return (
        f"weights {figures.size(model.weights_bytes)}{context}, {figures.size(model.kv_bytes)} of "
        f"memory"
    )


def _speed_here(known: EngineFigures) -> str:
    """Say how fast the model writes on this machine, as far as that is known."""
    if known.earlier is not None:
        return f"usually {figures.rate(known.earlier.median_tps)} tok/s here"
    limit = ceiling_at(known.facts, 0, known.read_gbps.get(known.threads))
    if limit is not None:
        return f"at most {figures.rate(limit.tps)} tok/s here"
    return ""


def _find_model(wanted: str, directories: Sequence[str]) -> Path:
    from app.models.library.find_by_name import named_model  # no first frame waits for it

    return named_model(wanted, directories)


def _line_of_machine(threads: int, get_key: str, measured: events.MemoryMeasured) -> str:
    from app.models.library.known_models import machine_line  # no first frame waits for it

    return machine_line(threads, get_key, measured.read_gbps, measured.is_quiet)
