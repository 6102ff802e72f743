"""What the engine's thread does: one command after the other, each ending in messages, never in an exception.

Owns model, session and conversation of the engine. Knows nothing of the screen; of the two threads' common ground it
knows ``Wire``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.bridge import (
    Ask,
    ChatOptions,
    Close,
    Command,
    Examine,
    GrantThreads,
    Load,
    MeasureBandwidth,
    Prepare,
    Regenerate,
    StartConversation,
    Tune,
    Wire,
)
from app.clean_text import TextCleaner, clean_line
from app.conversation import Ending
from app.crash_log import log_without_text
from app.engine_measures import EngineMeasures
from app.engine_status import Activity, EngineStatus
from app.engine_tuning import EngineTuning
from app.messages import (
    GenerationFailed,
    GenerationFinished,
    ModelFailed,
    ModelLoaded,
    PromptRefused,
    PromptStopped,
    TextGenerated,
    TuningEnded,
)
from app.read_ahead import ReadAhead
from app.reply import Reply, ReplyMeter
from engine.errors import Cancelled, EngineError

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.chat_prompt import ChatPrompt

MIN_REPLY_TOKENS = 16
"""Room that must be left for an answer before a prompt is taken."""


class EngineWorker:
    """The engine's thread."""

    def __init__(self, wire: Wire, options: ChatOptions) -> None:
        self._wire, self._options = wire, options
        self._model: Model | None = None
        self._session: Session | None = None
        self._chat: ChatPrompt | None = None
        self._measures = EngineMeasures(wire, options.open_history(), wire.clock)
        self._ahead = ReadAhead(wire)
        self._tuning = EngineTuning(wire, options)

    def run(self) -> None:
        """Take commands until ``Close``. Whatever a command raises becomes a message."""
        while not self._wire.closing.is_set():
            command = self._wire.commands.get()
            if isinstance(command, Close):
                break
            try:
                self._obey(command)
            except BaseException as error:  # the thread must outlive any bug, or the chat would wait for ever
                self._report(command, error)
        self._unload()

    def _obey(self, command: Command) -> None:
        if isinstance(command, Load):
            self._load(command)
        elif isinstance(command, StartConversation):
            if self._chat is not None:
                self._chat.start(command.system)
        elif isinstance(command, Ask):
            self._ask(command.text, command.asked_s)
        elif isinstance(command, Regenerate):
            self._regenerate()
        elif isinstance(command, Prepare):
            self._prepare(command)
        elif isinstance(command, MeasureBandwidth) and self._model is not None:
            self._measures.measure_bandwidth(self._model, self._is_wanted)
        elif isinstance(command, Examine):
            self._examine(command)
        elif isinstance(command, GrantThreads):
            self._tuning.grant()
        elif isinstance(command, Tune):
            self._tune(command)

    def _is_wanted(self) -> bool:
        return self._wire.closing.is_set() or not self._wire.commands.empty()

    def _prepare(self, command: Prepare) -> None:
        try:
            if self._session is not None and self._chat is not None:
                self._ahead.prepare(self._session, self._chat, command)
        finally:
            self._wire.idle_work.end()

    def _tune(self, command: Tune) -> None:
        if self._session is None:
            self._wire.emit(TuningEnded("no model is loaded"))
            return
        meter = self._wire.status.meter
        try:
            self._tuning.tune(command, self._session)
        finally:
            self._settle(meter)

    def _report(self, command: Command, error: BaseException) -> None:
        reason = reason_of(error)
        if isinstance(command, Prepare):
            return  # nobody has asked for anything yet; what is wrong is said when the message is sent
        if isinstance(command, Load):
            self._unload()
            self._wire.emit(ModelFailed(reason))
        elif isinstance(command, Tune):
            self._wire.emit(TuningEnded(reason))
        elif not isinstance(command, MeasureBandwidth):  # nobody waits for that one
            self._settle()
            self._wire.emit(GenerationFailed(reason))

    # ---- models

    def _load(self, command: Load) -> None:
        self._unload()
        self._set_status(EngineStatus(Activity.LOADING, clean_line(command.path.name, 40)))
        self._model = self._options.open_model(command.path, self._show_progress)
        self._chat = self._model.chat()
        self._session = self._model.session(self._options.context_size, self._options.kv_type)
        self._chat.start(command.system)
        self._measures.note_model(self._model, self._session)
        self._tuning.note_opened(self._model)
        if self._options.on_opened is not None:
            self._options.on_opened(command.path)
        self._settle()
        self._wire.emit(
            ModelLoaded(
                name=clean_line(self._model.name, 60),
                quantization=clean_line(self._model.quantization, 12),
                path=str(command.path),
                n_ctx=self._session.n_ctx,
                kv_bytes=self._session.kv_bytes,
                weights_bytes=self._model.weights_bytes,
                notices=tuple(self._model.notices),
            )
        )

    def _show_progress(self, progress: Any) -> None:
        if self._wire.closing.is_set():
            raise Cancelled("closing")
        activity = Activity.COMPILING if progress.stage == "compile" else Activity.LOADING
        since_s = self._wire.status.since_s if self._wire.status.activity is activity else self._wire.clock()
        step = clean_line(progress.name, 40)
        self._set_status(EngineStatus(activity, step, progress.done, progress.total, since_s))

    def _unload(self) -> None:
        session, model = self._session, self._model
        self._session = self._model = self._chat = None
        self._measures.note_no_model()
        self._tuning.note_closed()
        for resource in (session, model):
            if resource is not None:
                resource.close()
        self._set_status(EngineStatus())

    # ---- turns

    def _ask(self, text: str, asked_s: float | None) -> None:
        chat = self._chat
        if chat is None:
            self._wire.emit(GenerationFailed("no model is loaded"))
            return
        n_before = len(chat.messages)
        try:
            # Before the first token there is no turn yet: the engine's side forgets the question, and the screen
            # decides whether to ask again.
            if not self._answer(chat, chat.add_user(text), asked_s):
                chat.rewind(n_before)
        except BaseException:
            chat.rewind(n_before)
            raise

    def _regenerate(self) -> None:
        chat = self._chat
        if chat is None or not chat.messages or chat.messages[-1].role != "assistant":
            self._wire.emit(GenerationFailed("there is no reply to regenerate"))
            return
        n_before = len(chat.messages) - 1
        chat.rewind(n_before)
        try:
            answered = self._answer(chat, chat.prompt_ids())
        except BaseException:
            chat.rewind(n_before - 1)
            raise
        if not answered:
            chat.rewind(n_before - 1)

    def _answer(self, chat: ChatPrompt, ids: list[int], asked_s: float | None = None) -> bool:
        """Read the prompt and write the reply; False means that there is no reply and the turn does not count."""
        session, model = self._session, self._model
        assert session is not None
        assert model is not None
        needed = len(ids) + min(MIN_REPLY_TOKENS, session.n_ctx // 8)
        if needed > session.n_ctx:
            self._wire.emit(PromptRefused(needed, session.n_ctx))
            return False
        turn = _Turn(self._wire, session, chat, self._options, ids, self._measures)
        self._measures.begin_reply(model, session, turn.meter, asked_s)
        try:
            return turn.run()
        finally:
            self._measures.end_reply(model)
            self._settle(turn.meter)

    # ---- the doctor

    def _examine(self, command: Examine) -> None:
        """Measure between two turns; the status is as before, so that the last reply's figures stay."""
        before = self._wire.status
        try:
            assert self._options.examine is not None
            found = self._options.examine(self._model, self._session, self._options.kv_type, self._show_progress)
            command.answer.set_result(found)
        except BaseException as error:  # it is the doctor's to show, not a reply's
            command.answer.set_exception(error)
        finally:
            self._wire.status = before

    # ---- status

    def _settle(self, meter: ReplyMeter | None = None) -> None:
        """Say that the thread is free again."""
        self._ahead.settle(self._session.length if self._session is not None else 0)
        activity = Activity.NO_MODEL if self._session is None else Activity.READY
        self._set_status(EngineStatus(activity, meter=meter))

    def _set_status(self, status: EngineStatus) -> None:
        self._wire.status = with_context(status, self._model, self._session)


class _Turn:
    """One prompt and its reply."""

    def __init__(
        self,
        wire: Wire,
        session: Session,
        chat: ChatPrompt,
        options: ChatOptions,
        ids: list[int],
        measures: EngineMeasures,
    ) -> None:
        self._wire, self._session, self._chat, self._measures = wire, session, chat, measures
        self._cleaner = TextCleaner()
        self._shown: list[str] = []
        self._reply = Reply(
            session,
            ids,
            options.sampling(),
            max_tokens=options.max_tokens,
            on_prompt_progress=self._show_progress,
            clock=wire.clock,
        )

    @property
    def meter(self) -> ReplyMeter:
        """What is measured."""
        return self._reply.meter

    def run(self) -> bool:
        """Answer; True when there is a reply, whole or partial, that the conversation now holds."""
        self._wire.reply = self._reply
        if self._wire.cancelled.is_set():  # asked for in the moment before the reply could be seen
            self._reply.cancel()
        try:
            return self._run()
        finally:
            self._wire.reply = None

    def _run(self) -> bool:
        self._update(activity=Activity.READING, since_s=self.meter.started_s, meter=self.meter)
        try:
            for piece in self._reply:
                self._show(self._cleaner.push(piece))
                self._update(activity=Activity.WRITING, context_used=self._session.length)
                self._measures.note_progress()
        except BaseException as error:
            if not self._reply.ids:
                raise
            self._keep_reply()
            self._wire.emit(GenerationFailed(reason_of(error), self.meter.figures()))
            return True
        ending = self.meter.ending
        if ending is Ending.STOPPED and not self._reply.ids:
            self._wire.emit(PromptStopped())
            return False
        self._keep_reply()
        self._wire.emit(GenerationFinished(ending, self.meter.figures()))
        return True

    def _show_progress(self, done: int, total: int) -> None:
        self._update(done=done, total=total, context_used=self._session.length)
        self._measures.note_progress()

    def _update(self, **changes: Any) -> None:
        self._wire.threads.grant()  # whoever calls stands between two steps
        self._wire.status = replace(self._wire.status, **changes)

    def _show(self, text: str) -> None:
        if text:
            self._shown.append(text)
            self._wire.emit(TextGenerated(text))

    def _keep_reply(self) -> None:
        self._show(self._cleaner.flush())
        self._chat.add_reply(self._reply.ids, self._reply.text)


def with_context(status: EngineStatus, model: Model | None, session: Session | None) -> EngineStatus:
    """Fill in threads and context, which hold whatever the thread is doing."""
    return replace(
        status,
        threads=model.threads if model is not None else 0,
        context_used=session.length if session is not None else 0,
        n_ctx=session.n_ctx if session is not None else 0,
    )


def reason_of(error: BaseException) -> str:
    """Say in one clean line what went wrong; a bug goes to the log and is only named."""
    if isinstance(error, EngineError):
        return clean_line(str(error), 300)
    if isinstance(error, MemoryError):
        return "not enough memory for this turn; /new or a smaller context needs less"
    if isinstance(error, OSError) and error.strerror:
        return clean_line(f"{error.filename or 'model file'}: {error.strerror}", 300)
    log = log_without_text(error)
    return f"internal error in the engine: {type(error).__name__} ({f'details in {log}' if log else 'not logged'})"
