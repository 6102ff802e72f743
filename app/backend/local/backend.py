"""The engine of this machine as a backend: opens models, answers requests, emits events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.backend.engine_link import EngineLink
from app.backend.local import engine_access
from app.backend.local.context_room import NoRoomError
from app.backend.local.earlier_texts import EarlierTexts
from app.backend.local.model import LocalModel, TurnPrompt
from app.backend.local.picture_reading import PictureReading
from app.backend.local.read_ahead import ReadAhead
from app.backend.local.saved_states import SavedStates
from app.backend.local.titles import write_title
from app.backend.local.turn import LocalTurn, ParallelTurns, peer_sessions
from app.backend.measures import EngineMeasures
from app.backend.options import ChatOptions
from app.backend.protocol import DocumentToRead, Opening
from app.backend.reply import ReplyMeter
from app.backend.status import Activity, EngineStatus
from app.backend.tools import EngineTools, cut_to_tokens
from app.backend.tuning import EngineTuning
from app.conversations.session_options import SessionOptions
from app.documents.read import tokens_ratio
from app.program import garbage
from app.program.background import fulfil
from app.program.makers import advice_of
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace
from app.session import events
from app.session.events import reason_of
from app.session.request import Request
from app.text.clean_text import clean_line
from app.text.record import record
from engine.errors import Cancelled, EngineError
from engine.prompt.thinking import ThinkingMode
from engine.prompt.tools.calls import ToolCall

if TYPE_CHECKING:
    from engine import Model, Session

MIN_RATED_TOKENS = 16
"""Fewest prompt tokens whose rate predicts that of longer prompts."""


@record
class LoadedModel:
    """A model that is open, with everything that belongs to it."""

    path: Path
    local: LocalModel
    measures: EngineMeasures
    tuning: EngineTuning
    states: SavedStates
    ahead: ReadAhead
    earlier: EarlierTexts
    pictures: PictureReading | None
    """None if the model cannot see."""


class LocalBackend:
    """Opens models and computes with them; its methods are those of ``Backend``."""

    def __init__(self, link: EngineLink, options: ChatOptions) -> None:
        self._link = link
        self._options = options
        self._opened: LoadedModel | None = None
        self._prefill_tps = 0.0
        self._has_reported_doubt = False
        self._may_stop_opening = False
        """Whether a stop ends opening: that of a new model, but not of the previous one."""
        self._history = options.open_history()
        self._state_files = options.state_files()
        self._tools = EngineTools(link, options)

    @property
    def is_open(self) -> bool:
        """Whether a model is open."""
        return self._opened is not None

    def _model(self) -> LoadedModel:
        """Return the open model. Raises Refusal: there is none."""
        if self._opened is None:
            raise Refusal("no model is loaded")
        return self._opened

    # ---- short work

    def read_ahead(self, request: Request, draft: str, is_read: bool, is_settled: bool) -> None:
        """Count the tokens of a draft and prefill it."""
        opened = self._model()
        is_read = is_read and not self._tools.may_change(opened.local.model)
        opened.ahead.prepare(request, draft, is_read, is_settled)

    def read_document(self, document: DocumentToRead) -> None:
        """Report how much of a document is saved, then read the rest."""
        opened = self._model()
        is_read = document.is_read and not self._tools.may_change(opened.local.model)
        opened.ahead.read_document(replace(document, is_read=is_read))

    def write_title(self, request: Request, conversation_id: str) -> None:
        """Write a title for a conversation."""
        local = self._model().local
        meter = self._link.status.meter
        decode_tps = 0.0
        if meter is not None:
            decode_tps = meter.decode_tps
        local.set_messages(request.messages)
        title = write_title(self._link, local.session, local.chat, self._prefill_tps, decode_tps)
        if title:
            self._link.emit(events.TitleWritten(conversation_id, title))

    def weigh(self, request: Request, draft: str) -> None:
        """Report the cost of a request."""
        opened = self._model()
        with opened.local.preserving_messages():
            ids = opened.local.prompt(request).all_ids
        n_cached = opened.states.reusable(ids)
        n_unread = len(ids) - n_cached
        n_dropped = opened.local.session.length - n_cached
        read_s = self._seconds_to_read(n_unread)
        self._link.emit(events.EditCostMeasured(draft, n_cached, n_dropped, n_unread, read_s))

    def tune(self, parts: tuple[str, ...]) -> None:
        """Search for the best settings."""
        with self._preserving_figures():
            self._model().tuning.tune(parts)

    def call_tools(self, calls: tuple[ToolCall, ...], settled: Mapping[str, str]) -> None:
        """Run tool calls."""
        local = self._model().local
        with self._preserving_figures():
            cut = partial(cut_to_tokens, local.model.tokenizer)
            self._tools.call(calls, settled, local.session.n_ctx, cut)

    def measure_bandwidth(self) -> None:
        """Measure how fast memory can be read."""
        measured = self._model().measures.measure_bandwidth(self._link.has_other_work)
        if measured is not None:
            self._link.emit(measured)

    def examine(self, answer: Future[Any]) -> None:
        """Measure the machine for the doctor.

        Sets ``answer`` to an ``app.machine.doctor.examine.Examination`` or an exception, which the
        doctor shows.
        """
        status = self._link.status
        fulfil(answer, self._examination)
        self._link.update(status=status)

    def _examination(self) -> Any:
        examine = self._options.examine
        if examine is None:
            raise Refusal("the machine cannot be examined here")
        if self._opened is None:
            return examine(
                None, None, self._options.settings.kv_type_or_default, self._show_progress
            )
        local = self._opened.local
        return examine(local.model, local.session, local.session.kv_type, self._show_progress)

    @contextmanager
    def _preserving_figures(self) -> Iterator[None]:
        """Show the last reply's figures again after the block."""
        meter = self._link.status.meter
        try:
            yield
        finally:
            self.report_free(meter)

    # ---- models

    def open(self, opening: Opening) -> None:
        """Open a model.

        If that fails, the previous model is opened again and reads what it had read.
        """
        if not isinstance(opening.place, Path):
            raise TypeError("the engine opens files")
        previous = self._opened
        request = opening.request
        if not opening.keeps:
            request = request.only_system()
        self._may_stop_opening = True
        try:
            opened = self._open(opening.place, request.options)
        except BaseException as error:
            self._may_stop_opening = False
            if previous is None or self._link.inbox.is_closing:
                raise
            self._link.inbox.stop_requested.clear()
            self._link.emit(events.ModelSwitchFailed(reason_of(error), is_open=False))
            request = opening.request
            opened = self._open(previous.path, request.options)
        self._may_stop_opening = False

        if opened.tuning.doubt and not self._has_reported_doubt:
            self._has_reported_doubt = True
            self._link.emit(events.TuningDoubted(opened.tuning.doubt))
        if opening.rereads and request.n_turns:
            opened.states.leave()
            self._read(opened, partial(self._resume, opened, request), opening.state)
        else:
            self.continue_conversation(request, opening.state)

    def look_at(self, place: ModelPlace) -> None:
        """Check a file while a model is open.

        Raises Exception: the file cannot be opened, or the user stopped.
        """
        if not isinstance(place, Path):
            raise TypeError("the engine opens files")
        name = clean_line(place.name, 40)
        status = EngineStatus(Activity.LOADING, name, meter=self._link.status.meter)
        self._set_status(status)
        self._options.check_model(place)
        self._raise_if_stopped()

    def _open(self, path: Path, options: SessionOptions) -> LoadedModel:
        """Open a model and report it."""
        opened = self._open_quietly(path, options)
        model = opened.local.model
        line = self._options.on_opened(path)
        notices = list(model.notices)
        if line:
            notices.append(line)
        session = opened.local.session
        encode = partial(model.tokenizer.encode, bos=False)
        self._link.emit(
            events.ModelLoaded(
                name=clean_line(model.name, 60),
                quantization=clean_line(model.quantization, 12),
                path=str(path),
                n_ctx=session.n_ctx,
                kv_bytes=session.kv_bytes,
                weights_bytes=model.weights_bytes,
                notices=tuple(notices),
                full_name=model.name,
                thinking=str(opened.local.chat.thinking),
                context_may_grow=session.n_ctx < model.config.context_length,
                tokens_ratio=tokens_ratio(encode, model.tokenizer.vocab_size),
                sees_pictures=model.pictures.encoder is not None,
            )
        )
        return opened

    def _open_quietly(self, path: Path, options: SessionOptions) -> LoadedModel:
        """Open a model in place of the present one."""
        self.unload()
        self._set_status(EngineStatus(Activity.LOADING, clean_line(path.name, 40)))
        model = self._options.open_model(path, self._show_progress)
        try:
            opened = self._set_up(path, model, options)
        except BaseException:
            model.close()
            raise
        self._opened = opened
        garbage.look_through_new()
        self.report_free()
        return opened

    def _set_up(self, path: Path, model: Model, session_options: SessionOptions) -> LoadedModel:
        """Create the session of an opened model, and what belongs to it."""
        link = self._link
        options = self._options
        if session_options.adapters:
            engine_access.use_adapters(model, session_options.adapters)
        # Before the session: it starts a process, which no thread should precede.
        chat = model.chat()
        thinking = session_options.thinking or engine_access.recall_thinking(options.settings, path)
        chat.thinking = ThinkingMode.parse(thinking)
        chat.tools = self._tools.known(model)
        link.update(advise=partial(advice_of, model.metadata))

        n_ctx = options.settings.context_size or options.size_context(model, chat)
        session = model.session(n_ctx, engine_access.kv_type_of(options.settings, model))
        local = LocalModel(model, session, chat, options.settings, options.least_reply_tokens)
        local.adapters = session_options.adapters
        return self._with_parts(path, local)

    def _with_parts(
        self, path: Path, local: LocalModel, tuning: EngineTuning | None = None
    ) -> LoadedModel:
        """Create what belongs to a model and its session; tuning only if there is none."""
        link = self._link
        options = self._options
        model = local.model
        session = local.session
        measures = EngineMeasures(link, self._history, model, session, options.watch_conditions())
        if tuning is None:
            tuning = EngineTuning(link, options, model, session, measures.update_weights)
        states = SavedStates(
            link,
            self._state_files,
            model,
            session,
            link.has_other_work,
            seconds_to_read=partial(self._usual_seconds_to_read, measures),
        )
        pictures = None
        if model.pictures.encoder is not None:
            pictures = PictureReading(link, self._history, model, local.pictures)
        ahead = ReadAhead(link, local, states, pictures)
        earlier = EarlierTexts(
            link, options.settings, model.tokenizer, session, link.has_other_work
        )
        return LoadedModel(path, local, measures, tuning, states, ahead, earlier, pictures)

    def unload(self) -> None:
        """Close the model, if one is open."""
        opened = self._opened
        self._opened = None
        self._link.forget_model()
        if opened is not None:
            opened.states.close(self._link.inbox.flush_s)
            opened.local.session.close()
            opened.local.model.close()
        self._set_status(EngineStatus())

    def use_adapters(self, adapters: tuple[str, ...]) -> None:
        """Replace the adapters of the model."""
        self._adapt(self._model(), adapters)
        self.report_free(self._link.status.meter)
        self._link.emit(events.AdaptersChanged(adapters))

    def _adapt(self, opened: LoadedModel, adapters: tuple[str, ...]) -> None:
        """Use these adapters if others are in use; the model must then read everything again."""
        if opened.local.adapters != adapters:
            opened.states.leave()
            engine_access.use_adapters(opened.local.model, adapters)
            opened.local.adapters = adapters

    def use_kv_type(self) -> None:
        """Use the requested type of KV cache; the next request reads the conversation again."""
        inbox = self._link.inbox
        kv_type = inbox.requested_kv_type
        opened = self._model()
        try:
            if kv_type and kv_type != opened.local.session.kv_type:
                self._open_session(opened, kv_type)
        finally:
            if inbox.requested_kv_type == kv_type:
                inbox.requested_kv_type = ""

    def _open_session(self, opened: LoadedModel, kv_type: str) -> None:
        """Replace the session of the open model by one with another type of KV cache, or with the
        same type if there is no room."""
        begin_s = self._link.now_s()
        local = opened.local
        previous = local.session
        opened.states.close(self._link.inbox.flush_s)
        previous.close()
        trouble = ""
        try:
            session = local.model.session(previous.n_ctx, kv_type)
        except EngineError as error:
            trouble = f"the KV cache stays {previous.kv_type}: {error}"
            session = local.model.session(previous.n_ctx, previous.kv_type)
        local.session = session
        figures = self._link.state.figures
        reopened = self._with_parts(opened.path, local, opened.tuning)
        facts = self._link.state.figures.facts
        self._link.update(figures=replace(figures, facts=facts))
        self._opened = reopened
        opened.tuning.use_session(session, reopened.measures.update_weights, begin_s, trouble)
        self.report_free(self._link.status.meter)

    # ---- conversations

    def continue_conversation(self, request: Request, state: Path | None = None) -> None:
        """Continue a conversation; what the cache lacks is read with the next request."""
        opened = self._model()
        opened.states.leave()
        self._adapt(opened, request.options.adapters)
        _use_thinking(opened.local, request.options)
        if request.n_turns:
            resumed = self._resumed(opened, request, state)
            self.report_free()
            self._link.emit(resumed)
        else:
            opened.local.set_messages(request.messages)
            opened.local.set_size(0)
            self.report_free()
            if opened.local.has_messages:
                # Restores the system prompt into the cache if it was read before.
                opened.states.begin_with(opened.local.chat.opening_ids(""))
                self.report_free()
        opened.earlier.give()

    def _resumed(
        self, opened: LoadedModel, request: Request, state: Path | None
    ) -> events.ConversationResumed:
        try:
            ids = self._resume(opened, request)
            restored = opened.states.restore(ids, state)
            n_ready = opened.local.session.reusable([*ids, -1])
            n_restored = min(restored.tokens, n_ready)
            read_s = None
            if tps := opened.measures.usual_prefill_tps():
                read_s = n_restored / tps
            return events.ConversationResumed(
                len(ids), n_ready, n_restored, restored.seconds, read_s, restored.trouble
            )
        except BaseException as error:
            return events.ConversationResumed(0, trouble=reason_of(error))

    def _resume(self, opened: LoadedModel, request: Request) -> list[int]:
        """Set the messages of a conversation and return the beginning of its next prompt."""
        opened.local.set_messages(request.messages)
        ids: list[int] = opened.local.chat.opening_ids("")
        opened.local.set_size(len(ids))
        return ids

    def read(self, request: Request) -> None:
        """Prefill a request whose last message may grow."""
        opened = self._model()
        *earlier, last = request.messages

        def prompt_beginning() -> list[int]:
            opened.local.set_messages(earlier)
            return opened.local.chat.opening_ids(last.text)

        self._read(opened, prompt_beginning)

    def _read(
        self,
        opened: LoadedModel,
        prompt_beginning: Callable[[], list[int]],
        state: Path | None = None,
    ) -> None:
        """Prefill the beginning of a prompt and save the state; an error does not close the
        model."""
        local = opened.local
        if opened.pictures is not None:
            opened.pictures.begin()
        try:
            reread = opened.ahead.reread(prompt_beginning(), state)
        except BaseException as error:
            reread = events.ConversationReread(0, 0, 0.0, reason_of(error))
        local.n_tokens = local.session.length
        n_computed = reread.read_tokens - reread.restored_tokens
        read_s = reread.read_s
        if opened.pictures is not None:
            read_s -= opened.pictures.encoded_s
        if n_computed >= MIN_RATED_TOKENS and read_s > 0:
            self._prefill_tps = n_computed / read_s
        opened.states.update()
        self.report_free()
        self._link.emit(reread)

    # ---- turns

    def reply(self, request: Request) -> None:
        """Answer a request."""
        opened = self._model()
        has_reply = False
        turn = None
        if opened.pictures is not None:
            opened.pictures.begin()
        self._adapt(opened, request.options.adapters)
        peers = peer_sessions(opened.local.model, opened.local.session, request.n_answers)
        try:
            with peers as (sessions, trouble):
                turn = self._prepare(opened, request, is_only=len(sessions) == 1)
                if turn is not None and request.n_answers > 1:
                    self._link.emit(events.AnswersBegun(len(sessions), trouble))
                if turn is not None and len(sessions) > 1:
                    has_reply = self._answer_together(opened, turn, sessions[1:])
                elif turn is not None:
                    has_reply = self._answer(opened, turn, request.sent_s)
        finally:
            # Without a reply, the conversation has the size that it had before.
            if has_reply:
                opened.local.set_size(opened.local.session.length)
            opened.states.update()
            self.report_free(turn.meter if turn is not None else None)
        if has_reply:
            opened.earlier.save()
            opened.earlier.give()
            opened.tuning.tune_kernels()

    def compare(self, place: Path, request: Request, back: Opening) -> None:
        """Answer a request with another model, next to the reply that there is."""
        path = self._model().path
        prefill_tps = self._prefill_tps
        try:
            self.look_at(place)
            self._answer_as(place, request)
        except Cancelled:
            self._link.emit(events.PromptStopped())
        finally:
            self._prefill_tps = prefill_tps
            self.report_free()
            is_other_open = self._opened is None or self._opened.path != path
            if is_other_open and not self._link.inbox.is_closing:
                self._link.inbox.stop_requested.clear()
                self._open_again(path, back)

    def _answer_as(self, place: Path, request: Request) -> None:
        """Open another model and answer a request as the second of two replies."""
        self._may_stop_opening = True
        try:
            opened = self._open_quietly(place, request.options)
        finally:
            self._may_stop_opening = False
        turn = self._prepare(opened, request, is_only=True, answer_index=1)
        if turn is None:
            return
        model = opened.local.model
        title = clean_line(f"{model.name} {model.quantization}", 72)
        self._link.emit(events.AnswersBegun(2, other_model=title))
        if self._answer(opened, turn, None):
            self._link.emit(events.AnswersFinished())
        else:
            self._link.emit(events.PromptStopped())

    def _open_again(self, path: Path, opening: Opening) -> None:
        """Open the model of the conversation again, as it was."""
        try:
            self._open_quietly(path, opening.request.options)
            self.continue_conversation(opening.request, opening.state)
        except BaseException as error:
            self.unload()
            self._link.emit(events.ModelFailed(reason_of(error), error))

    def _prepare(
        self,
        opened: LoadedModel,
        request: Request,
        is_only: bool,
        answer_index: int | None = None,
    ) -> LocalTurn | None:
        """Return the turn of a request; None if events report why there is none.

        Args:
            is_only: whether no other reply is written at the same time.
            answer_index: index of the reply among answers of several models; None for a turn of
                the conversation's model.
        """
        local = opened.local
        # After results of tools the prompt must describe the same tools.
        has_same_tools = request.has_results and bool(local.chat.tools)
        if not request.may_call and not request.has_results:
            local.use_tools(())
        elif not has_same_tools and not self._tools.offer(
            local, has_form=request.options.form is not None
        ):
            return None
        _use_thinking(local, request.options)
        try:
            prompt = local.prompt_with_room(request)
        except NoRoomError as error:
            self._refuse(request, error.needed_tokens, local.session.n_ctx)
            return None
        if prompt.dropped_turns and answer_index is None:
            self._report_dropped(opened, prompt)
        opened.states.restore(prompt.all_ids)

        call_splitter = None
        on_progress: Callable[[], object] = opened.states.update
        if is_only:
            on_progress = partial(self._update_progress, opened)
            # In one of several replies, calls are text: none of them is run.
            if prompt.chat is not None:
                call_splitter = self._tools.splitter(local, request.may_call)
        index = None if is_only else 0
        try:
            return LocalTurn(
                self._link,
                local,
                prompt,
                self._options,
                request.options,
                on_progress,
                call_splitter,
                index,
                may_call=request.may_call,
                answer_index=answer_index,
                pictures=opened.pictures,
            )
        except Cancelled:  # Stopped while the form was compiled.
            self._link.emit(events.PromptStopped())
            return None

    def _refuse(self, request: Request, needed_tokens: int, n_ctx: int) -> None:
        if request.continuation is None:
            self._link.emit(events.PromptRefused(needed_tokens, n_ctx))
        else:
            reason = "the context is full: there is no room to go on (/new begins again)"
            self._link.emit(events.GenerationFailed(reason))

    def _report_dropped(self, opened: LoadedModel, prompt: TurnPrompt) -> None:
        ids = prompt.all_ids
        # The remaining turns move down in the cache, so only the rest must be read.
        opened.local.session.shift_towards(ids)
        n_unread = len(ids) - opened.states.reusable(ids)
        read_s = self._seconds_to_read(n_unread)
        self._link.emit(
            events.TurnsDropped(prompt.dropped_turns, prompt.dropped_tokens, n_unread, read_s)
        )

    def _seconds_to_read(self, n_tokens: int) -> float | None:
        if self._prefill_tps <= 0:
            return None
        return n_tokens / self._prefill_tps

    def _usual_seconds_to_read(self, measures: EngineMeasures, n_tokens: int) -> float | None:
        """Return the time in which tokens are usually read, else as fast as in the last turn."""
        if tps := measures.usual_prefill_tps():
            return n_tokens / tps
        return self._seconds_to_read(n_tokens)

    def _answer(self, opened: LoadedModel, turn: LocalTurn, sent_s: float | None) -> bool:
        """Write the reply; return whether there is one."""
        with (
            opened.measures.measuring(turn.meter, sent_s),
            self._link.running(turn.reply, turn.written),
        ):
            has_reply = turn.run()
        if turn.meter.read_tokens >= MIN_RATED_TOKENS or not self._prefill_tps:
            self._prefill_tps = turn.meter.prefill_tps
        return has_reply

    def _answer_together(
        self, opened: LoadedModel, first: LocalTurn, peers: Sequence[Session]
    ) -> bool:
        """Write several replies; return whether there is one."""
        turns = [first]
        for index, session in enumerate(peers, 1):
            turns.append(
                LocalTurn(
                    self._link,
                    opened.local,
                    first.prompt,
                    self._options,
                    first.session_options,
                    on_progress=lambda: None,
                    index=index,
                    session=session,
                )
            )
        parallel = ParallelTurns(turns, self._link)
        with self._link.running(parallel, first.written):
            has_reply = parallel.run()
        if has_reply:
            self._link.emit(events.AnswersFinished())
        else:
            self._link.emit(events.PromptStopped())
        return has_reply

    # ---- progress

    def report_free(self, meter: ReplyMeter | None = None) -> None:
        """Report that the thread is free."""
        activity = Activity.NO_MODEL
        if self._opened is not None:
            if self._opened.pictures is not None:
                self._opened.pictures.save_speed()
            self._opened.ahead.set_conversation_tokens(self._opened.local.session.length)
            activity = Activity.READY
        self._set_status(EngineStatus(activity, meter=meter))

    def _update_progress(self, opened: LoadedModel) -> None:
        opened.measures.update_progress()
        opened.states.update()

    def _show_progress(self, progress: Any) -> None:
        if self._link.inbox.is_closing:
            raise Cancelled("closing")
        if self._may_stop_opening:
            self._raise_if_stopped()
        activity = Activity.LOADING
        if progress.stage == "compile":
            activity = Activity.COMPILING
        since_s = self._link.now_s()
        if self._link.status.activity is activity:
            since_s = self._link.status.since_s
        name = clean_line(progress.name, 40)
        self._set_status(EngineStatus(activity, name, progress.done, progress.total, since_s))

    def _raise_if_stopped(self) -> None:
        if self._link.inbox.stop_requested.is_set():
            raise Cancelled("stopped before the model was open")

    def _set_status(self, status: EngineStatus) -> None:
        """Replace the status; its threads and context are those of the open model."""
        status = replace(status, usual_prefill_tps=self._prefill_tps)
        if self._opened is not None:
            local = self._opened.local
            status = replace(
                status,
                threads=local.model.threads,
                n_ctx=local.session.n_ctx,
                turn_starts=local.turn_starts,
                context_used=local.n_tokens,
            )
        self._link.update(status=status)


def _use_thinking(local: LocalModel, options: SessionOptions) -> None:
    """Let the next prompt ask for thinking as the options say."""
    if options.form is not None:
        # The form is that of the whole reply, in which a thought has no place.
        local.chat.thinking = ThinkingMode(False)
    elif options.thinking:
        local.chat.thinking = ThinkingMode.parse(options.thinking)
