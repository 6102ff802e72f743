"""Commands carried out by the engine on this machine; each ends in events.

Owns model, session and conversation of the engine. Knows nothing of the screen; of the two threads' common ground it
knows ``Wire``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.chat import commands, events
from app.chat.context_room import MIN_REPLY_TOKENS, Fitted, NoRoomError
from app.chat.live_conversation import LiveConversation
from app.chat.options import ChatOptions
from app.chat.read_ahead import ReadAhead, Rereading
from app.chat.reply import ReplyMeter
from app.chat.saved_states import SavedStates
from app.chat.status import Activity, EngineStatus
from app.chat.turn import EngineTurn, reason_of
from app.chat.wire import Wire
from app.chat.worker_measures import EngineMeasures
from app.chat.worker_tools import EngineTools
from app.chat.worker_tuning import EngineTuning
from app.conversations.conversation import PastTurn
from app.documents.read import tokens_ratio
from app.program import garbage
from app.program.background import fulfil
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace
from app.text.clean_text import clean_line
from app.text.record import record
from app.tuning.remembered import kv_type_of
from engine.errors import Cancelled, EngineError
from engine.prompt.thinking_mode import ThinkingMode

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.prompt.chat_prompt import ChatPrompt

TELLING_TOKENS = 16
"""Least prompt tokens whose rate says something about longer prompts."""


@record
class Opened:
    """A model that is open, with all that belongs to it."""

    path: Path
    model: Model
    session: Session
    live: LiveConversation


class EngineWorker:
    """Opens models and computes with them."""

    def __init__(self, wire: Wire, options: ChatOptions) -> None:
        self._wire, self._options = wire, options
        self._opened: Opened | None = None
        self._has_tuned: Opened | None = None
        self._prefill_tps = 0.0
        self._is_opening_new = False
        """A new model, which may be stopped; the one from before, if it is wanted back, is not."""
        self._measures = EngineMeasures(wire, options.open_history(), wire.clock)
        self._ahead = ReadAhead(wire)
        self._tuning = EngineTuning(wire, options, self._measures.note_weights)
        self._tools = EngineTools(wire, options)
        self._states = SavedStates(
            wire, options.state_files() if options.state_files is not None else None, self._is_wanted
        )

        self._obeys: dict[type[commands.Command], Callable[[Any], None]] = {
            commands.Load: self._load,
            commands.StartConversation: self._start_conversation,
            commands.OpenConversation: self._open_conversation,
            commands.Weigh: self._weigh,
            commands.Prepare: self._read_ahead,
            commands.Read: self._read,
            commands.MeasureBandwidth: lambda _: self._measure_bandwidth(),
            commands.Examine: self._examine,
            commands.GrantThreads: lambda _: self._tuning.grant(),
            commands.Tune: self._tune,
            commands.Think: self._think,
            commands.CallTools: self._call_tools,
        }

    @property
    def is_open(self) -> bool:
        """Whether a model is open."""
        return self._opened is not None

    def obey(self, command: commands.Command) -> None:
        """Carry a command out."""
        self._obeys.get(type(command), self._take_turn)(command)

    def _start_conversation(self, command: commands.StartConversation) -> None:
        if self._opened is not None:
            self._states.leave()
            self._opened.live.start(command.system)
            self.settle()
            self._prepare_system(self._opened, command.system)

    def _tune_kernels(self, opened: Opened) -> None:
        """Find out how decode should ask memory ahead, once for a model, unless something is asked meanwhile."""
        if self._options.try_lookahead is None or self._has_tuned is opened or self._is_wanted():
            return
        try:
            self._options.try_lookahead(opened.model, opened.session, self._is_wanted, False)
            self._has_tuned = opened
        except (EngineError, MemoryError):  # given way to something better: after the next reply, then
            return

    def _is_wanted(self) -> bool:
        return self._wire.closing.is_set() or not self._wire.commands.empty()

    def _read_ahead(self, command: commands.Prepare) -> None:
        try:
            if self._opened is not None:
                reads = command.read_ahead and not self._tools.may_change(self._opened.model)
                command, chat = replace(command, read_ahead=reads), self._opened.live.chat
                self._ahead.prepare(self._opened.session, chat, command, self._states.bring_back)
        finally:
            self._wire.idle_work.end()

    def _tune(self, command: commands.Tune) -> None:
        if self._opened is None:
            self._wire.emit(events.TuningEnded("no model is loaded"))
            return
        meter = self._wire.status.meter
        try:
            self._tuning.tune(command, self._opened.session)
        finally:
            self.settle(meter)

    def _think(self, command: commands.Think) -> None:
        opened, remember = self._opened, self._options.remember_thinking
        if opened is None:
            return
        opened.live.chat.thinking = ThinkingMode.parse(command.mode)
        self._wire.thinking = str(opened.live.chat.thinking)
        trouble = remember(opened.path, self._wire.thinking) if remember is not None else None
        self._wire.emit(events.ThinkingChosen(self._wire.thinking, trouble or ""))

    def _call_tools(self, command: commands.CallTools) -> None:
        meter = self._wire.status.meter
        try:
            if self._opened is not None:
                self._tools.call(command, self._opened.session)
        finally:
            self.settle(meter)

    def report(self, command: commands.Command, error: BaseException) -> None:
        """Say what went wrong with a command."""
        reason = reason_of(error)
        if isinstance(command, commands.UNASKED):
            return  # nobody has asked for anything yet; what is wrong is said when the message is sent
        if isinstance(command, commands.Load):
            self.unload()
            self._wire.emit(events.ModelFailed(reason, error))
        elif isinstance(command, commands.Tune):
            self._wire.emit(events.TuningEnded(reason))
        else:
            self.settle()
            self._wire.emit(events.GenerationFailed(reason, error=error))

    # ---- models

    def _load(self, command: commands.Load) -> None:
        """Open a model; where that fails, the one from before stays or is opened again, and reads what it had read."""
        if not isinstance(command.path, Path):
            raise Refusal("models of servers cannot be used here")
        before = self._opened.path if self._opened is not None else None
        turns, n_dropped = command.turns, command.n_dropped
        if before is not None and not self.can_open(command.path):
            return
        try:
            opened = self._open_new(command.path, command.system, n_dropped)
        except BaseException as error:
            if before is None or self._wire.closing.is_set():
                raise
            self._wire.cancelled.clear()
            self._wire.emit(events.ModelKept(reason_of(error), is_open=False))
            turns, n_dropped = command.turns_before, command.n_dropped_before
            opened = self._open(before, command.system, n_dropped)
        self._tuning.doubt_what_is_remembered()
        if not turns:
            self._prepare_system(opened, command.system)
        elif command.rereads:
            self._reread(opened, turns, n_dropped, command.state)
        else:
            self._take_up(opened, turns, n_dropped, command.state)

    def can_open(self, path: ModelPlace) -> bool:
        """Look at a file while the present model is still open."""
        status = self._wire.status
        self._set_status(EngineStatus(Activity.LOADING, clean_line(path.name, 40), meter=status.meter))
        try:
            if self._options.check_model is not None and isinstance(path, Path):
                self._options.check_model(path)
            self._refuse_stopped()
        except Exception as error:
            self.settle(status.meter)
            self._wire.emit(events.ModelKept(reason_of(error), is_open=True))
            return False
        return True

    def _open_new(self, path: Path, system: str | None, n_dropped: int) -> Opened:
        self._is_opening_new = True
        try:
            return self._open(path, system, n_dropped)
        finally:
            self._is_opening_new = False

    def _measure_bandwidth(self) -> None:
        if self._opened is None:
            return
        conditions = self._options.watch_conditions()
        conditions.begin()
        gbps = self._measures.measure_bandwidth(self._opened.model, self._is_wanted)
        if gbps is not None:
            self._wire.emit(events.MemoryMeasured(gbps, conditions.end().is_crowded))

    def _open(self, path: Path, system: str | None, n_dropped: int) -> Opened:
        self.unload()
        self._set_status(EngineStatus(Activity.LOADING, clean_line(path.name, 40)))
        model = self._options.open_model(path, self._show_progress)
        try:
            opened = self._opened = self._begin(path, model)
        except BaseException:
            model.close()
            raise
        session = opened.session
        opened.live.start(system, n_dropped)
        self._measures.note_model(model, session)
        self._tuning.note_opened(session)
        self._states.note_opened(model, session)
        if self._options.on_opened is not None:
            self._options.on_opened(path)
        garbage.look_through_new()
        self.settle()
        self._wire.emit(
            events.ModelLoaded(
                name=clean_line(model.name, 60),
                quantization=clean_line(model.quantization, 12),
                path=str(path),
                n_ctx=session.n_ctx,
                kv_bytes=session.kv_bytes,
                weights_bytes=model.weights_bytes,
                notices=tuple(model.notices),
                full_name=model.name,
                thinking=self._wire.thinking,
                tokens_ratio=tokens_ratio(partial(model.tokenizer.encode, bos=False), model.tokenizer.vocab_size),
            )
        )
        return opened

    def _begin(self, path: Path, model: Model) -> Opened:
        chat = model.chat()  # before the session: it starts a process, which no thread should precede
        chat.thinking = ThinkingMode.parse(self._options.recall_thinking(path))
        self._wire.thinking = str(chat.thinking)
        chat.tools = self._tools.known(model)
        if self._options.generation is not None:
            self._options.generation.recall(path, model.sampling_advice)
        kv_type = self._tuning.note_model(model)
        session = model.session(self._context_size(model, chat), kv_type)
        return Opened(path, model, session, LiveConversation(model, session, chat, self._options.least_reply_tokens))

    def _context_size(self, model: Model, chat: ChatPrompt) -> int | None:
        options = self._options
        if options.context_size or options.size_context is None:
            return options.context_size
        return options.size_context(model, chat)

    def _prepare_system(self, opened: Opened, system: str | None) -> None:
        """Have the system prompt in the cache before anything is asked, if that has been read once before."""
        if system:
            self._states.begin_with(opened.live.chat.opening_ids(""))
            self.settle(self._wire.status.meter)

    def _open_conversation(self, command: commands.OpenConversation) -> None:
        opened = self._opened
        if opened is None:
            return
        self._states.leave()
        opened.live.start(command.system, command.n_dropped)
        if command.turns:
            self._take_up(opened, command.turns, command.n_dropped, command.state)
        else:
            self.settle()

    def _take_up(self, opened: Opened, turns: Sequence[PastTurn], n_dropped: int, state: Path | None) -> None:
        """Go on with a saved conversation; what of it is not in the cache is read with what is asked next."""
        try:
            ids = opened.live.take_up(turns, n_dropped)
            back = self._states.bring_back(ids, state)
            ready = opened.session.reusable([*ids, -1])
            restored = min(back.tokens, ready)
            tps = self._measures.usual_prefill_tps(opened.model)
            read_s = restored / tps if tps else None
            taken_up = events.ConversationTakenUp(len(ids), ready, restored, back.seconds, read_s, back.trouble)
        except BaseException as error:
            taken_up = events.ConversationTakenUp(0, trouble=reason_of(error))
        self.settle()
        self._wire.emit(taken_up)

    def _reread(self, opened: Opened, turns: Sequence[PastTurn], n_dropped: int, state: Path | None) -> None:
        """Let the model read a conversation that another one had; what goes wrong does not cost the model."""
        try:
            ids = opened.live.take_up(turns, n_dropped)
            back = self._states.bring_back(ids, state)  # this model may have had the conversation before
            restored = min(back.tokens, opened.session.reusable([*ids, -1]))
            reread = Rereading(self._wire, opened.session).run(ids, MIN_REPLY_TOKENS)
            reread = replace(reread, restored_tokens=restored, trouble=reread.trouble or back.trouble)
        except BaseException as error:
            reread = events.ConversationReread(0, 0, 0.0, reason_of(error))
        opened.live.note_read()
        self._states.note_progress()
        newly_read = reread.read_tokens - reread.restored_tokens
        if newly_read >= TELLING_TOKENS and reread.read_s > 0:
            self._prefill_tps = newly_read / reread.read_s
        self.settle()
        self._wire.emit(reread)

    def _read(self, command: commands.Read) -> None:
        """Read what the next message begins with, and keep the state as far as that came."""
        opened = self._opened
        if opened is None:
            self._wire.emit(events.ConversationReread(0, 0, 0.0, "no model is loaded"))
            return
        try:
            ids = opened.live.chat.opening_ids(command.text)
            n_taken = self._states.bring_back(ids).tokens
            reread = Rereading(self._wire, opened.session, self._states.note_progress).run(ids, MIN_REPLY_TOKENS)
            reread = replace(reread, restored_tokens=n_taken)
        except BaseException as error:
            reread = events.ConversationReread(0, 0, 0.0, reason_of(error))
        self._states.note_progress()
        self.settle()
        self._wire.emit(reread)

    def _show_progress(self, progress: Any) -> None:
        if self._wire.closing.is_set():
            raise Cancelled("closing")
        if self._is_opening_new:
            self._refuse_stopped()
        activity = Activity.COMPILING if progress.stage == "compile" else Activity.LOADING
        since_s = self._wire.status.since_s if self._wire.status.activity is activity else self._wire.clock()
        step = clean_line(progress.name, 40)
        self._set_status(EngineStatus(activity, step, progress.done, progress.total, since_s))

    def _refuse_stopped(self) -> None:
        if self._wire.cancelled.is_set():
            raise Cancelled("stopped before the model was open")

    def unload(self) -> None:
        """Close the model, if one is open."""
        opened, self._opened = self._opened, None
        self._measures.note_no_model()
        self._wire.thinking = ""
        self._has_tuned = None
        self._tuning.note_closed()
        self._states.note_closing(self._wire.patience_s)
        if opened is not None:
            opened.session.close()
            opened.model.close()
        self._set_status(EngineStatus())

    # ---- turns

    def _take_turn(self, command: commands.Command) -> None:
        """Answer; where no reply comes of it, the conversation is what it was before."""
        opened = self._opened
        if opened is None:
            self._wire.emit(events.GenerationFailed("no model is loaded"))
            return
        is_kept, turn = False, None
        try:
            turn = self._prepare(opened, command)
            asked_s = command.asked_s if isinstance(command, commands.Ask) else None
            is_kept = turn is not None and self._answer(opened, turn, asked_s)
        finally:
            opened.live.end_turn(is_kept)
            self._states.note_progress()
            self.settle(turn.meter if turn is not None else None)
        if is_kept:
            self._tune_kernels(opened)

    def _prepare(self, opened: Opened, command: commands.Command) -> EngineTurn | None:
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
            begun = (
                live.begin_completion(command.text)
                if isinstance(command, commands.Complete)
                else live.begin_turn(command)
            )
        except NoRoomError as error:
            self._refuse(command, error.needed_tokens, session.n_ctx)
            return None
        if begun is None:
            self._wire.emit(events.GenerationFailed("no reply to continue or answer again"))
            return None
        prompt, fitted = begun
        if fitted is not None and fitted.dropped_turns:
            self._tell_dropped(session, fitted)
        self._states.bring_back(prompt.all_ids)
        calls = self._tools.splitter(opened.model, live.chat) if prompt.chat is not None else None
        return EngineTurn(self._wire, session, prompt, self._options, self._note_progress, live.tags, calls)

    def _refuse(self, command: commands.Command, needed_tokens: int, n_ctx: int) -> None:
        if isinstance(command, (commands.Continue, commands.ContinueEdited)):
            self._wire.emit(
                events.GenerationFailed("the context is full: there is no room to go on (/new begins anew)")
            )
        else:
            self._wire.emit(events.PromptRefused(needed_tokens, n_ctx))

    def _tell_dropped(self, session: Session, fitted: Fitted) -> None:
        ids = [*fitted.prompt.ids, *fitted.prompt.begun]
        session.shift_towards(ids)  # what stays moves down in the cache: only what is new must be read
        unread = len(ids) - self._states.reusable(ids)
        read_s = unread / self._prefill_tps if self._prefill_tps > 0 else None
        self._wire.emit(events.TurnsDropped(fitted.dropped_turns, fitted.dropped_tokens, unread, read_s))

    def _note_progress(self) -> None:
        self._measures.note_progress()
        self._states.note_progress()

    def _answer(self, opened: Opened, turn: EngineTurn, asked_s: float | None) -> bool:
        """Read the prompt and write the reply; False means that there is no reply and the turn does not count."""
        model = opened.model
        self._measures.begin_reply(model, opened.session, turn.meter, asked_s)
        try:
            is_kept = turn.run()
        finally:
            self._measures.end_reply(model)
        if turn.meter.read_tokens >= TELLING_TOKENS or not self._prefill_tps:
            self._prefill_tps = turn.meter.prefill_tps
        return is_kept

    def _weigh(self, command: commands.Weigh) -> None:
        if self._opened is None:
            return
        weighed = self._opened.live.weigh(command, self._states.reusable)
        read_s = weighed.read_tokens / self._prefill_tps if self._prefill_tps > 0 else None
        kept, dropped = weighed.kept_tokens, weighed.dropped_tokens
        self._wire.emit(events.PromptWeighed(command.text, kept, dropped, weighed.read_tokens, read_s))

    # ---- the doctor

    def _examine(self, command: commands.Examine) -> None:
        """Measure between two turns; the status is as before, so that the last reply's figures stay."""
        before = self._wire.status
        fulfil(command.answer, self._measured)  # an error is the doctor's to show, not a reply's
        self._wire.status = before

    def _measured(self) -> Any:
        assert self._options.examine is not None
        model, session = (self._opened.model, self._opened.session) if self._opened is not None else (None, None)
        return self._options.examine(model, session, self._kv_type(), self._show_progress)

    def _kv_type(self) -> str:
        if self._opened is not None:
            return self._opened.session.kv_type
        return kv_type_of(self._options.kv_type, None)

    # ---- status

    def settle(self, meter: ReplyMeter | None = None) -> None:
        """Say that the thread is free again."""
        opened = self._opened
        self._ahead.settle(opened.session.length if opened is not None else 0)
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
