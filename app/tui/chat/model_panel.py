"""The open model: opening others, its name in the title bar, and choices for its replies."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App
from textual.widgets import Static

from app.forms.answer_form import SCHEMA, AnswerForm, read_form_file
from app.machine.tuning.threads_in_use import describe_in_use
from app.program.background import in_background
from app.program.bundled_model import is_starter
from app.program.remote_model import ModelPlace
from app.program.settings import AUTO
from app.session import commands, events
from app.session.adapters import described
from app.session.reply_options import (
    describe_form,
    describe_persona,
    describe_sampling,
    describe_thinking,
)
from app.text.clean_text import clean_line
from app.tui.actions import CHAT
from app.tui.chat.conversation_flow import ConversationFlow
from app.tui.chat.core import ChatCore
from app.tui.chat.message_actions import MessageActions
from app.tui.chat.welcome import Welcome, size_line
from app.tui.screens import make_screen
from app.tui.textual_hacks import run_last
from app.tui.widgets.prompt import PLACEHOLDER, PLACEHOLDER_LOADING

if TYPE_CHECKING:
    from app.models.library.listing import Outlook

SHORT_READING_S = 2.0
"""Limit on the time to read the conversation below which a model is opened without a question."""
UNKNOWN_TPS = 50.0
"""Speed of reading in tokens per second that is assumed while none is known."""


class ModelPanel:
    """Opens models, and shows which one is open."""

    def __init__(
        self,
        core: ChatCore,
        conversations: ConversationFlow,
        messages: MessageActions,
        welcome: Welcome,
    ) -> None:
        self._core = core
        self._conversations = conversations
        self._messages = messages
        self._welcome = welcome
        self.name = Static(markup=False, id="model-name")
        """The model's name and choices, in the title bar."""
        self._resumes = False
        """Whether the model is opened for a resumed conversation, which has a line of its own."""

    # ---- opening

    def load(self, path: ModelPlace, keeps: bool = False, rereads: bool = True) -> bool:
        """Begin to open a model; False while the engine is busy.

        Args:
            keeps: whether the conversation continues with the model.
            rereads: whether the model reads that conversation at once.
        """
        self._resumes = keeps and not rereads
        has_begun = self._core.chat_session.load(path, keeps, rereads)
        if has_begun:
            self._core.prompt.placeholder = PLACEHOLDER_LOADING
        return has_begun

    def begin_for_saved(self) -> None:
        """Show that a model is opened for a saved conversation."""
        self._resumes = True
        self._core.prompt.placeholder = PLACEHOLDER_LOADING

    def open(self, path: ModelPlace, title: str, outlook: Outlook | None = None) -> bool:
        """Open a model, and ask first what happens to a conversation; False while busy.

        Args:
            path: of the file, or the model of a server.
            title: clean text.
            outlook: the model's expected speed; it is looked up if it is None.
        """
        chat_session = self._core.chat_session
        if chat_session.is_busy:
            return False
        if chat_session.conversation.is_empty:
            self._open_in_chat(path, "new")
        else:
            ask = partial(self._ask_about_conversation, path, title, outlook)
            run_last(self._core.screen, "switch", ask)
        return True

    async def _ask_about_conversation(
        self, path: ModelPlace, title: str, outlook: Outlook | None
    ) -> None:
        from app.models.library.listing import look_up

        host = "" if isinstance(path, Path) else path.host
        if outlook is None and isinstance(path, Path):
            outlook = await wrap_future(look_up(path, self._core.settings))
        prefill_tps = outlook.prefill_tps if outlook else None
        tokens = self._core.engine_thread.status.context_used
        reading_s = tokens / (prefill_tps or UNKNOWN_TPS)
        if not host and reading_s < SHORT_READING_S:
            self._open_in_chat(path, "keep")
            return
        question = make_screen(
            "question",
            title,
            tokens,
            prefill_tps,
            self._core.keymap,
            host,
            kind="SwitchModelScreen",
        )
        self._app.push_screen(question, partial(self._open_in_chat, path))

    def _open_in_chat(self, path: ModelPlace, answer: str | None) -> None:
        if answer is not None:
            if self._app.current_mode != CHAT:
                self._app.switch_mode(CHAT)
            self._core.screen.call_later(self._switch, path, answer == "keep")

    async def _switch(self, path: ModelPlace, keeps: bool) -> None:
        """Load another model, with a new conversation or with the present one."""
        if not self.load(path, keeps):
            self._core.say(self._core.busy_line())
            return
        if self._core.chat_session.conversation.is_empty:
            await self._conversations.clear_transcript()
        self._core.focus_prompt()
        consequence = " for a new conversation"
        if keeps and isinstance(path, Path):
            consequence = ", then reading the conversation · /new starts another"
        elif keeps:
            consequence = "; the conversation is sent to its server"
        self._core.say(f"Loading {clean_line(path.name)}{consequence}")

    # ---- events

    async def show_loaded(self, model: events.ModelLoaded, is_new: bool) -> None:
        """Show the name of a model that was opened, and introduce it.

        Args:
            is_new: whether a new conversation begins with the model.
        """
        if is_new:
            await self._conversations.clear_transcript()
        self._core.prompt.placeholder = PLACEHOLDER
        self.show_name()
        if not self._resumes:
            self._introduce(model)
        # Importing Markdown takes 0.1 s: do it after the first frame and before the first reply.
        import_reply = partial(import_module, "app.tui.widgets.reply_body")
        self._core.screen.call_after_refresh(import_reply)
        self._welcome.describe_machine()

    def _introduce(self, model: events.ModelLoaded) -> None:
        if is_starter(model.path):
            self._welcome.introduce_starter()
        elif self._core.chat_session.conversation.is_empty:
            self._welcome.introduce(model, self._conversations.offer_last(model.path))
        else:
            self._core.say(size_line(model))
        for line in model.notices:
            self._core.say(line)
        self._conversations.say_start()

    def show_failed(self, event: events.ModelFailed) -> None:
        """Say why no model is open."""
        self._core.prompt.placeholder = PLACEHOLDER
        self.name.update("")
        self._core.say_event(event)

    def show_kept(self, event: events.ModelSwitchFailed) -> None:
        """Say why another model was not opened, and that the model from before stays."""
        if event.is_open:
            self._core.prompt.placeholder = PLACEHOLDER
        self._core.say_event(event)

    def show_adapters(self, event: events.AdaptersChanged) -> None:
        """Say which adapters change the model now."""
        self._core.say_event(event)
        self.show_name()

    def show_name(self) -> None:
        """Show the model's name and the choices for its replies in the title bar."""
        model = self._core.chat_session.model
        if model is None:
            return
        options = self._core.chat_session.conversation.options
        thinking = ""
        if self._core.chat_session.request_options.thinking not in ("", AUTO):
            thinking = describe_thinking(self._core.chat_session.request_options.thinking)
        privacy = "private" if self._core.chat_session.journal.is_private else ""
        parts = (
            privacy,
            model.name,
            model.quantization,
            model.server,
            describe_persona(options),
            described(options.adapters),
            thinking,
            describe_sampling(options.sampling),
            describe_form(options),
        )
        self.name.update(" · ".join(filter(None, parts)))

    # ---- commands

    def action_model(self, argument: str) -> None:
        """Open a model by its name or path, and ask first what happens to the conversation."""
        run_last(self._core.screen, "model", partial(self._find_and_open, argument))

    async def _find_and_open(self, name: str) -> None:
        """Find a model, check its file, and open it."""
        path = await self._core.find_model(name)
        if path is not None and not self.open(path, clean_line(path.name)):
            self._core.say(self._core.busy_line())

    def action_thinking(self, argument: str = "") -> None:
        """Choose how much the model thinks; without an argument, show or fold its last thinking."""
        if not argument:
            self._messages.toggle_last_thinking()
            return
        with self._core.refusals_said():
            self._core.say(commands.choose_thinking(self._core.chat_session, argument))
        self.show_name()

    def action_set(self, argument: str = "") -> None:
        """Show or change sampling parameters, from the next message on."""
        core = self._core
        with core.refusals_said():
            core.say(commands.choose_sampling(core.engine_thread, core.chat_session, argument))
        self.show_name()

    def action_schema(self, argument: str = "") -> None:
        """Show or change the form of replies, from the next message on."""
        if commands.is_form_file(argument):
            self._core.screen.run_worker(self._choose_form(argument.strip()), group="form")
        else:
            chat_session = self._core.chat_session
            self._core.say(commands.show_or_remove_form(chat_session, argument))
            self.show_name()

    async def _choose_form(self, path: str) -> None:
        """Change the form of replies; another process checks it, which takes a moment."""
        chat_session = self._core.chat_session
        with self._core.refusals_said():
            read = partial(read_form_file, SCHEMA, path)
            form = await wrap_future(in_background(read, "form"))
            # Set before the check, so that a message sent meanwhile uses it.
            previous_form = chat_session.conversation.options.form
            chat_session.change_options(form=form)
            try:
                unenforced = await wrap_future(in_background(partial(_check_form, form), "form"))
            except BaseException:
                if chat_session.conversation.options.form is form:
                    chat_session.change_options(form=previous_form)
                raise
            self._core.say(commands.form_line(form, unenforced))
        self.show_name()

    def action_lora(self, argument: str = "") -> None:
        """Show the adapters of the model, or use others from the next message on."""
        core = self._core
        with core.refusals_said():
            adapters = commands.requested_adapters(core.chat_session, argument)
            if isinstance(adapters, str):
                core.say(adapters)
            elif not core.chat_session.use_adapters(adapters):
                core.say(core.busy_line())

    def action_threads(self, argument: str = "") -> None:
        """Show the numbers of threads, or change them from the next token on."""
        core = self._core
        tune_key = core.keymap.key_or_command("app.tune")
        advice = f"{tune_key} finds the best and remembers it"
        with core.refusals_said():
            threads = commands.requested_threads(
                core.engine_thread, core.chat_session, argument, advice
            )
            if isinstance(threads, str):
                core.say(threads)
            elif not core.hand_tuning.try_choice(threads.now):
                core.say(describe_in_use(threads))

    @property
    def _app(self) -> App[object]:
        return self._core.screen.app


def _check_form(form: AnswerForm) -> Sequence[str]:
    from app.forms.constraint import check_form  # not needed for the first frame

    return check_form(form)
