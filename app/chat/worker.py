"""Commands carried out by the engine on this machine; each ends in events. Knows nothing of the screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.chat import commands, events, opening
from app.chat.context_room import NoRoomError, TurnPrompt
from app.chat.events import reason_of
from app.chat.live_conversation import LiveConversation
from app.chat.options import ChatOptions
from app.chat.read_ahead import ReadAhead
from app.chat.reply import ReplyMeter
from app.chat.saved_states import SavedStates
from app.chat.status import Activity, EngineStatus
from app.chat.titles import write_title
from app.chat.turn import EngineTurn
from app.chat.wire import Wire
from app.chat.worker_measures import EngineMeasures
from app.chat.worker_tools import EngineTools, within_tokens
from app.chat.worker_tuning import EngineTuning
from app.documents.read import tokens_ratio
from app.program import garbage
from app.program.background import fulfil
from app.program.makers import advice_of
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace
from app.text.clean_text import clean_line
from app.text.record import record
from engine.errors import Cancelled
from engine.prompt.thinking_mode import ThinkingMode

if TYPE_CHECKING:
    from engine import Model, Session

TELLING_TOKENS = 16
"""Least prompt tokens whose rate says something about longer prompts."""


@record
class OpenedModel:
    """A model that is open, with all that belongs to it."""

    path: Path
    model: Model
    session: Session
    live: LiveConversation
    measures: EngineMeasures
    tuning: EngineTuning
    states: SavedStates
    ahead: ReadAhead


class EngineWorker:
    """Opens models and computes with them."""

    def __init__(self, wire: Wire, options: ChatOptions) -> None:
        self._wire, self._options = wire, options
        self._opened: OpenedModel | None = None
        self._prefill_tps = 0.0
        self._has_doubted = False
        self._is_opening_new = False
        """A new model, which may be stopped; the one from before, if it is wanted back, is not."""
        self._history = options.open_history()
        self._state_files = options.state_files()
        self._tools = EngineTools(wire, options)
        self._obeys: dict[type[commands.Command], Callable[[OpenedModel, Any], None]] = {
            commands.OpenConversation: self._open_conversation,
            commands.Weigh: self._weigh,
            commands.Prepare: self._read_ahead,
            commands.WriteTitle: self._write_title,
            commands.Read: self._read_opening,
            commands.MeasureBandwidth: self._measure_bandwidth,
            commands.Tune: self._tune_or_call,
            commands.Think: self._think,
            commands.CallTools: self._tune_or_call,
        }

    @property
    def is_open(self) -> bool:
        """Whether a model is open."""
        return self._opened is not None

    def obey(self, command: commands.Command) -> None:
        """Carry a command out."""
        if isinstance(command, commands.Load):
            self._load(command)
        elif isinstance(command, commands.Examine):
            self._examine(command)
        elif isinstance(command, commands.GrantThreads):
            self._wire.grant_wish()
        elif self._opened is not None:
            self._obeys.get(type(command), self._take_turn)(self._opened, command)
        elif isinstance(command, commands.IDLE_WORK):
            self._wire.idle_work.end()
        elif isinstance(command, commands.Tune | commands.Read | commands.Turn):
            raise Refusal("no model is loaded")

    def _read_ahead(self, opened: OpenedModel, command: commands.Prepare) -> None:
        try:
            reads = command.read_ahead and not self._tools.may_change(opened.model)
            opened.ahead.prepare(replace(command, read_ahead=reads))
        finally:
            self._wire.idle_work.end()

    def _write_title(self, opened: OpenedModel, command: commands.WriteTitle) -> None:
        meter = self._wire.status.meter
        decode_tps = meter.decode_tps if meter is not None else 0.0
        try:
            title = write_title(self._wire, opened.session, opened.live.chat, self._prefill_tps, decode_tps)
        finally:
            self._wire.idle_work.end()
        if title:
            self._wire.emit(events.TitleWritten(command.conversation_id, title))

    def _tune_or_call(self, opened: OpenedModel, command: commands.Tune | commands.CallTools) -> None:
        meter = self._wire.status.meter  # the last reply's figures stay
        try:
            if isinstance(command, commands.Tune):
                opened.tuning.tune(command)
            else:
                within = partial(within_tokens, opened.model.tokenizer)
                self._tools.call(command, opened.session.n_ctx, within)
        finally:
            self.settle(meter)

    def _think(self, opened: OpenedModel, command: commands.Think) -> None:
        opened.live.chat.thinking = ThinkingMode.parse(command.mode)
        self._wire.thinking = str(opened.live.chat.thinking)
        if self._options.generation is not None:
            self._options.generation.advice = advice_of(opened.model.metadata, opened.live.chat.thinking)
        trouble = opening.remember_thinking(opened.path, self._wire.thinking)
        self._wire.emit(events.ThinkingChosen(self._wire.thinking, trouble or ""))

    # ---- models

    def _load(self, command: commands.Load) -> None:
        """Open a model; where that fails, the one from before stays or is opened again, and reads what it had read."""
        assert isinstance(command.path, Path)
        before = self._opened.path if self._opened is not None else None
        said = command.said if command.keeps else commands.OpenConversation(command.said.system)
        self._is_opening_new = True
        try:
            opened = self._open(command.path)
        except BaseException as error:
            self._is_opening_new = False
            if before is None or self._wire.closing.is_set():
                raise
            self._wire.cancelled.clear()
            self._wire.emit(events.ModelKept(reason_of(error), is_open=False))
            said, opened = command.said, self._open(before)
        self._is_opening_new = False
        if opened.tuning.doubt and not self._has_doubted:  # once is enough
            self._has_doubted = True
            self._wire.emit(events.TuningDoubted(opened.tuning.doubt))
        self._open_conversation(opened, said, command.rereads)

    def look_at(self, path: ModelPlace) -> None:
        """Look at a file while a model is open. Raises Exception: it cannot be opened, or the user has stopped."""
        assert isinstance(path, Path)
        self._set_status(EngineStatus(Activity.LOADING, clean_line(path.name, 40), meter=self._wire.status.meter))
        self._options.check_model(path)
        self._refuse_stopped()

    def _measure_bandwidth(self, opened: OpenedModel, command: commands.MeasureBandwidth) -> None:
        measured = opened.measures.measure_bandwidth(self._wire.is_wanted)
        if measured is not None:
            self._wire.emit(measured)

    def _open(self, path: Path) -> OpenedModel:
        self.unload()
        self._set_status(EngineStatus(Activity.LOADING, clean_line(path.name, 40)))
        model = self._options.open_model(path, self._show_progress)
        try:
            opened = self._opened = self._begin(path, model)
        except BaseException:
            model.close()
            raise
        self._options.on_opened(path)
        garbage.look_through_new()
        self.settle()
        self._wire.emit(
            events.ModelLoaded(
                name=clean_line(model.name, 60),
                quantization=clean_line(model.quantization, 12),
                path=str(path),
                n_ctx=opened.session.n_ctx,
                kv_bytes=opened.session.kv_bytes,
                weights_bytes=model.weights_bytes,
                notices=tuple(model.notices),
                full_name=model.name,
                thinking=self._wire.thinking,
                context_may_grow=opened.session.n_ctx < model.config.context_length,
                tokens_ratio=tokens_ratio(partial(model.tokenizer.encode, bos=False), model.tokenizer.vocab_size),
            )
        )
        return opened

    def _begin(self, path: Path, model: Model) -> OpenedModel:
        wire, options = self._wire, self._options
        chat = model.chat()  # before the session: it starts a process, which no thread should precede
        chat.thinking = ThinkingMode.parse(opening.recall_thinking(options.settings, path))
        wire.thinking = str(chat.thinking)
        chat.tools = self._tools.known(model)
        if options.generation is not None:
            options.generation.recall(path, advice_of(model.metadata, chat.thinking))
        n_ctx = options.settings.context_size or options.size_context(model, chat)
        session = model.session(n_ctx, opening.kv_type_of(options.settings, model))
        live = LiveConversation(model, session, chat, options.least_reply_tokens)
        measures = EngineMeasures(wire, self._history, model, session, self._options.watch_conditions())
        tuning = EngineTuning(wire, options, model, session, measures.note_weights)
        states = SavedStates(wire, self._state_files, model, session, wire.is_wanted)
        ahead = ReadAhead(wire, session, chat, states)
        return OpenedModel(path, model, session, live, measures, tuning, states, ahead)

    def _open_conversation(self, opened: OpenedModel, said: commands.OpenConversation, rereads: bool = False) -> None:
        opened.states.leave()
        opened.live.start(said.system, said.n_dropped)
        if said.turns and rereads:
            self._read(opened, partial(opened.live.take_up, said.turns), said.state)
            return
        if said.turns:
            self._take_up(opened, said)
            return
        self.settle()
        if said.system:  # it is in the cache before anything is asked, if it has been read once before
            opened.states.begin_with(opened.live.chat.opening_ids(""))
            self.settle()

    def _take_up(self, opened: OpenedModel, said: commands.OpenConversation) -> None:
        """Go on with a saved conversation; what of it is not in the cache is read with what is asked next."""
        try:
            ids = opened.live.take_up(said.turns)
            back = opened.states.bring_back(ids, said.state)
            ready = opened.session.reusable([*ids, -1])
            restored = min(back.tokens, ready)
            tps = opened.measures.usual_prefill_tps()
            read_s = restored / tps if tps else None
            taken_up = events.ConversationTakenUp(len(ids), ready, restored, back.seconds, read_s, back.trouble)
        except BaseException as error:
            taken_up = events.ConversationTakenUp(0, trouble=reason_of(error))
        self.settle()
        self._wire.emit(taken_up)

    def _read_opening(self, opened: OpenedModel, command: commands.Read) -> None:
        self._read(opened, partial(opened.live.chat.opening_ids, command.text))

    def _read(self, opened: OpenedModel, begin: Callable[[], list[int]], state: Path | None = None) -> None:
        """Read what a prompt will ``begin`` with, and keep that; what goes wrong does not cost the model."""
        try:
            done = opened.ahead.reread(begin(), state)
        except BaseException as error:
            done = events.ConversationReread(0, 0, 0.0, reason_of(error))
        opened.live.n_tokens = opened.session.length
        newly_read = done.read_tokens - done.restored_tokens
        if newly_read >= TELLING_TOKENS and done.read_s > 0:
            self._prefill_tps = newly_read / done.read_s
        opened.states.note_progress()
        self.settle()
        self._wire.emit(done)

    def _show_progress(self, progress: Any) -> None:
        if self._wire.closing.is_set():
            raise Cancelled("closing")
        if self._is_opening_new:
            self._refuse_stopped()
        activity = Activity.COMPILING if progress.stage == "compile" else Activity.LOADING
        since_s = self._wire.status.since_s if self._wire.status.activity is activity else self._wire.now_s()
        step = clean_line(progress.name, 40)
        self._set_status(EngineStatus(activity, step, progress.done, progress.total, since_s))

    def _refuse_stopped(self) -> None:
        if self._wire.cancelled.is_set():
            raise Cancelled("stopped before the model was open")

    def unload(self) -> None:
        """Close the model, if one is open."""
        opened, self._opened = self._opened, None
        self._wire.forget_model()
        if opened is not None:
            opened.states.close(self._wire.patience_s)
            opened.session.close()
            opened.model.close()
        self._set_status(EngineStatus())

    # ---- turns

    def _take_turn(self, opened: OpenedModel, command: commands.Turn) -> None:
        """Answer; where no reply comes of it, the conversation is what it was before."""
        is_kept, turn = False, None
        try:
            turn = self._prepare(opened, command)
            asked_s = command.asked_s if isinstance(command, commands.Ask) else None
            is_kept = turn is not None and self._answer(opened, turn, asked_s)
        finally:
            opened.live.end_turn(is_kept)
            opened.states.note_progress()
            self.settle(turn.meter if turn is not None else None)
        if is_kept:
            opened.tuning.tune_kernels()

    def _prepare(self, opened: OpenedModel, command: commands.Turn) -> EngineTurn | None:
        """Bring the conversation to where the reply begins; None where it cannot be asked for."""
        live, session = opened.live, opened.session
        is_round = isinstance(command, commands.Ask) and command.answered is not None
        keeps_tools = is_round and bool(live.chat.tools)  # what its prompt tells of
        if not keeps_tools and not self._tools.offer(opened.model, live.chat):
            return None
        has_form = self._options.form is not None and self._options.form.form is not None
        # The form is that of the whole reply, in which a thought has no place.
        live.chat.thinking = ThinkingMode(False) if has_form else ThinkingMode.parse(self._wire.thinking)
        try:
            prompt: TurnPrompt | None
            if isinstance(command, commands.Complete):
                prompt = live.begin_completion(command.text)
            else:
                prompt = live.begin_turn(command)
        except NoRoomError as error:
            self._refuse(command, error.needed_tokens, session.n_ctx)
            return None
        if prompt is None:
            self._wire.emit(events.GenerationFailed("no reply to continue or answer again"))
            return None
        if prompt.dropped_turns:
            self._tell_dropped(opened, prompt)
        opened.states.bring_back(prompt.all_ids)
        calls = self._tools.splitter(opened.model, live.chat) if prompt.chat is not None else None
        note_progress = partial(self._note_progress, opened)
        try:
            return EngineTurn(self._wire, session, prompt, self._options, note_progress, live.tags, calls)
        except Cancelled:  # while the form of the answer was compiled
            self._wire.emit(events.PromptStopped())
            return None

    def _refuse(self, command: commands.Turn, needed_tokens: int, n_ctx: int) -> None:
        if isinstance(command, (commands.Continue, commands.ContinueEdited)):
            reason = "the context is full: there is no room to go on (/new begins again)"
            self._wire.emit(events.GenerationFailed(reason))
        else:
            self._wire.emit(events.PromptRefused(needed_tokens, n_ctx))

    def _tell_dropped(self, opened: OpenedModel, prompt: TurnPrompt) -> None:
        ids = prompt.all_ids
        opened.session.shift_towards(ids)  # what stays moves down in the cache: only what is new must be read
        unread = len(ids) - opened.states.reusable(ids)
        read_s = self._seconds_to_read(unread)
        self._wire.emit(events.TurnsDropped(prompt.dropped_turns, prompt.dropped_tokens, unread, read_s))

    def _seconds_to_read(self, n_tokens: int) -> float | None:
        return n_tokens / self._prefill_tps if self._prefill_tps > 0 else None

    def _note_progress(self, opened: OpenedModel) -> None:
        opened.measures.note_progress()
        opened.states.note_progress()

    def _answer(self, opened: OpenedModel, turn: EngineTurn, asked_s: float | None) -> bool:
        """Read the prompt and write the reply; False means that there is no reply and the turn does not count."""
        with opened.measures.of_reply(turn.meter, asked_s), self._wire.running(turn.reply, turn.written):
            is_kept = turn.run()
        if turn.meter.read_tokens >= TELLING_TOKENS or not self._prefill_tps:
            self._prefill_tps = turn.meter.prefill_tps
        return is_kept

    def _weigh(self, opened: OpenedModel, command: commands.Weigh) -> None:
        weighed = opened.live.weigh(command.turn, opened.states.reusable)
        self._wire.emit(replace(weighed, read_s=self._seconds_to_read(weighed.read_tokens)))

    def _examine(self, command: commands.Examine) -> None:
        """Measure between two turns; the status is as before, so that the last reply's figures stay."""
        before = self._wire.status
        fulfil(command.answer, self._measured)  # an error is the doctor's to show, not a reply's
        self._wire.status = before

    def _measured(self) -> Any:
        assert self._options.examine is not None
        opened = self._opened
        if opened is None:
            kv_type = self._options.settings.kv_type_or_default
            return self._options.examine(None, None, kv_type, self._show_progress)
        return self._options.examine(opened.model, opened.session, opened.session.kv_type, self._show_progress)

    def settle(self, meter: ReplyMeter | None = None) -> None:
        """Say that the thread is free again."""
        opened = self._opened
        if opened is not None:
            opened.ahead.settle(opened.session.length)
        self._set_status(EngineStatus(Activity.NO_MODEL if opened is None else Activity.READY, meter=meter))

    def _set_status(self, status: EngineStatus) -> None:
        """Replace the status; threads and context hold whatever the thread is doing."""
        status = replace(status, usual_prefill_tps=self._prefill_tps)
        if self._opened is not None:
            live = self._opened.live
            status = replace(
                status,
                threads=self._opened.model.threads,
                n_ctx=self._opened.session.n_ctx,
                turn_starts=live.turn_starts,
                context_used=live.n_tokens,
            )
        self._wire.status = status
