"""The engine of this machine as a backend: each work ends in events.

Knows nothing of the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from app.backend.local.read_ahead import ReadAhead
from app.backend.local.saved_states import SavedStates
from app.backend.local.titles import write_title
from app.backend.local.turn import Answers, LocalTurn, peers_of
from app.backend.measures import EngineMeasures
from app.backend.options import ChatOptions
from app.backend.protocol import DocumentToRead, Opening
from app.backend.reply import ReplyMeter
from app.backend.status import Activity, EngineStatus
from app.backend.tools import EngineTools, cut_to_tokens
from app.backend.tuning import EngineTuning
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
from engine.errors import Cancelled
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.tools.calls import ToolCall

if TYPE_CHECKING:
    from engine import Model, Session

TELLING_TOKENS = 16
"""Least prompt tokens whose rate says something about longer prompts."""


@record
class LoadedModel:
    """A model that is open, with all that belongs to it."""

    path: Path
    local: LocalModel
    measures: EngineMeasures
    tuning: EngineTuning
    states: SavedStates
    ahead: ReadAhead
    earlier: EarlierTexts


class LocalBackend:
    """Opens models and computes with them; every method as of ``Backend``."""

    def __init__(self, link: EngineLink, options: ChatOptions) -> None:
        self._link = link
        self._options = options
        self._opened: LoadedModel | None = None
        self._prefill_tps = 0.0
        self._has_doubted = False
        self._is_opening_new = False
        """A new model, which may be stopped; the one from before, if it is wanted back, is not."""
        self._history = options.open_history()
        self._state_files = options.state_files()
        self._tools = EngineTools(link, options)

    @property
    def is_open(self) -> bool:
        """Whether a model is open."""
        return self._opened is not None

    def _model(self) -> LoadedModel:
        """Return what is open. Raises Refusal: no model is."""
        if self._opened is None:
            raise Refusal("no model is loaded")
        return self._opened

    def read_ahead(self, request: Request, draft: str, is_read: bool, is_settled: bool) -> None:
        """Count a draft, and read it."""
        opened = self._model()
        reads = is_read and not self._tools.may_change(opened.local.model)
        opened.ahead.prepare(request, draft, reads, is_settled)

    def read_document(self, wanted: DocumentToRead) -> None:
        """Say how much is saved of a document, and read the rest."""
        opened = self._model()
        is_read = wanted.is_read and not self._tools.may_change(opened.local.model)
        opened.ahead.read_document(replace(wanted, is_read=is_read))

    def write_title(self, request: Request, conversation_id: str) -> None:
        """Write a title."""
        local = self._model().local
        meter = self._link.status.meter
        local.hold(request.messages)
        if meter is not None:
            decode_tps = meter.decode_tps
        else:
            decode_tps = 0.0
        title = write_title(self._link, local.session, local.chat, self._prefill_tps, decode_tps)
        if title:
            self._link.emit(events.TitleWritten(conversation_id, title))

    def tune(self, parts: tuple[str, ...]) -> None:
        """Search for the best threads."""
        with self._last_figures():
            self._model().tuning.tune(parts)

    def call_tools(self, calls: tuple[ToolCall, ...], allowed: frozenset[str]) -> None:
        """Run calls."""
        local = self._model().local
        with self._last_figures():
            self._tools.call(
                calls, allowed, local.session.n_ctx, partial(cut_to_tokens, local.model.tokenizer)
            )

    @contextmanager
    def _last_figures(self) -> Iterator[None]:
        """Let the last reply's figures stay after other work."""
        meter = self._link.status.meter
        try:
            yield
        finally:
            self.settle(meter)

    # ---- models

    def open(self, opening: Opening) -> None:
        """Open a model; where that fails, the one from before stays or is opened again, and reads
        what it had read."""
        assert isinstance(opening.place, Path)
        if self._opened is not None:
            before = self._opened.path
        else:
            before = None
        if opening.keeps:
            request = opening.request
        else:
            request = opening.request.only_system()
        self._is_opening_new = True
        try:
            opened = self._open(opening.place, request.adapters)
        except BaseException as error:
            self._is_opening_new = False
            if before is None or self._link.inbox.is_closing:
                raise
            self._link.inbox.stop_requested.clear()
            self._link.emit(events.ModelSwitchFailed(reason_of(error), is_open=False))
            opened = self._open(before, opening.request.adapters)
            request = opening.request
        self._is_opening_new = False
        if opened.tuning.doubt and not self._has_doubted:  # once is enough
            self._has_doubted = True
            self._link.emit(events.TuningDoubted(opened.tuning.doubt))
        if opening.rereads and request.n_turns:
            opened.states.leave()
            self._read(opened, partial(self._take_up, opened, request), opening.state)
        else:
            self.continue_conversation(request, opening.state)

    def look_at(self, place: ModelPlace) -> None:
        """Look at a file while a model is open.

        Raises Exception: it cannot be opened, or the user has stopped.
        """
        assert isinstance(place, Path)
        self._set_status(
            EngineStatus(
                Activity.LOADING, clean_line(place.name, 40), meter=self._link.status.meter
            )
        )
        self._options.check_model(place)
        self._refuse_stopped()

    def measure_bandwidth(self) -> None:
        """Find out how fast memory can be read."""
        measured = self._model().measures.measure_bandwidth(self._link.has_other_work)
        if measured is not None:
            self._link.emit(measured)

    def _open(self, path: Path, adapters: tuple[str, ...]) -> LoadedModel:
        self.unload()
        self._set_status(EngineStatus(Activity.LOADING, clean_line(path.name, 40)))
        model = self._options.open_model(path, self._show_progress)
        try:
            opened = self._opened = self._begin(path, model, adapters)
        except BaseException:
            model.close()
            raise
        news = self._options.on_opened(path)
        garbage.look_through_new()
        self.settle()
        session = opened.local.session
        self._link.emit(
            events.ModelLoaded(
                name=clean_line(model.name, 60),
                quantization=clean_line(model.quantization, 12),
                path=str(path),
                n_ctx=session.n_ctx,
                kv_bytes=session.kv_bytes,
                weights_bytes=model.weights_bytes,
                notices=(*model.notices, *filter(None, (news,))),
                full_name=model.name,
                thinking=self._link.inbox.thinking,
                context_may_grow=session.n_ctx < model.config.context_length,
                tokens_ratio=tokens_ratio(
                    partial(model.tokenizer.encode, bos=False), model.tokenizer.vocab_size
                ),
            )
        )
        return opened

    def _begin(self, path: Path, model: Model, adapters: tuple[str, ...]) -> LoadedModel:
        link = self._link
        options = self._options
        if adapters:
            engine_access.use_adapters(model, adapters)
        # before the session: it starts a process, which no thread should precede
        chat = model.chat()
        chat.thinking = ThinkingMode.parse(engine_access.recall_thinking(options.settings, path))
        link.inbox.thinking = str(chat.thinking)
        chat.tools = self._tools.known(model)
        link.update(advise=partial(advice_of, model.metadata))
        if options.generation is not None:
            options.generation.recall(path, link.state.advise(chat.thinking))
        n_ctx = options.settings.context_size or options.size_context(model, chat)
        session = model.session(n_ctx, engine_access.kv_type_of(options.settings, model))
        local = LocalModel(model, session, chat, options.settings, options.least_reply_tokens)
        local.adapters = adapters
        measures = EngineMeasures(link, self._history, model, session, options.watch_conditions())
        tuning = EngineTuning(link, options, model, session, measures.update_weights)
        states = SavedStates(link, self._state_files, model, session, link.has_other_work)
        ahead = ReadAhead(link, local, states)
        earlier = EarlierTexts(
            link, options.settings, model.tokenizer, session, link.has_other_work
        )
        return LoadedModel(path, local, measures, tuning, states, ahead, earlier)

    def continue_conversation(self, request: Request, state: Path | None = None) -> None:
        """Take in a conversation; what of it is not in the cache is read with what is asked
        next."""
        opened = self._model()
        opened.states.leave()
        self._adapt(opened, request.adapters)
        if request.n_turns:
            taken_up = self._taken_up(opened, request, state)
            self.settle()
            self._link.emit(taken_up)
        else:
            opened.local.hold(request.messages)
            opened.local.note_size(0)
            self.settle()
            # it is in the cache before anything is asked, if it has been read once before
            if request.messages:
                opened.states.begin_with(opened.local.chat.opening_ids(""))
                self.settle()
        opened.earlier.give()

    def use_adapters(self, adapters: tuple[str, ...]) -> None:
        """Change the model by these adapters in place of those before."""
        self._adapt(self._model(), adapters)
        self.settle(self._link.status.meter)
        self._link.emit(events.AdaptersChanged(adapters))

    def _adapt(self, opened: LoadedModel, adapters: tuple[str, ...]) -> None:
        """Let adapters change the model, if others do: what it has read is then read again."""
        if opened.local.adapters != adapters:
            opened.states.leave()
            engine_access.use_adapters(opened.local.model, adapters)
            opened.local.adapters = adapters

    def _taken_up(
        self, opened: LoadedModel, request: Request, state: Path | None
    ) -> events.ConversationResumed:
        try:
            ids = self._take_up(opened, request)
            back = opened.states.bring_back(ids, state)
            ready = opened.local.session.reusable([*ids, -1])
            restored = min(back.tokens, ready)
            tps = opened.measures.usual_prefill_tps()
            if tps:
                read_s = restored / tps
            else:
                read_s = None
            return events.ConversationResumed(
                len(ids), ready, restored, back.seconds, read_s, back.trouble
            )
        except BaseException as error:
            return events.ConversationResumed(0, trouble=reason_of(error))

    def _take_up(self, opened: LoadedModel, request: Request) -> list[int]:
        """Hold a conversation; returns what its next prompt will begin with."""
        opened.local.hold(request.messages)
        ids: list[int] = opened.local.chat.opening_ids("")
        opened.local.note_size(len(ids))
        return ids

    def read(self, request: Request) -> None:
        """Read what is known of a request."""
        opened = self._model()
        *before, last = request.messages

        def begin() -> list[int]:
            opened.local.hold(before)
            return opened.local.chat.opening_ids(last.text)

        self._read(opened, begin)

    def _read(
        self, opened: LoadedModel, begin: Callable[[], list[int]], state: Path | None = None
    ) -> None:
        """Read what a prompt will ``begin`` with, and keep that; what goes wrong does not cost the
        model."""
        local = opened.local
        try:
            done = opened.ahead.reread(begin(), state)
        except BaseException as error:
            done = events.ConversationReread(0, 0, 0.0, reason_of(error))
        local.n_tokens = local.session.length
        newly_read = done.read_tokens - done.restored_tokens
        if newly_read >= TELLING_TOKENS and done.read_s > 0:
            self._prefill_tps = newly_read / done.read_s
        opened.states.note_progress()
        self.settle()
        self._link.emit(done)

    def _show_progress(self, progress: Any) -> None:
        if self._link.inbox.is_closing:
            raise Cancelled("closing")
        if self._is_opening_new:
            self._refuse_stopped()
        if progress.stage == "compile":
            activity = Activity.COMPILING
        else:
            activity = Activity.LOADING
        if self._link.status.activity is activity:
            since_s = self._link.status.since_s
        else:
            since_s = self._link.now_s()
        step = clean_line(progress.name, 40)
        self._set_status(EngineStatus(activity, step, progress.done, progress.total, since_s))

    def _refuse_stopped(self) -> None:
        if self._link.inbox.stop_requested.is_set():
            raise Cancelled("stopped before the model was open")

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

    # ---- turns

    def reply(self, request: Request) -> None:
        """Answer; where no reply comes of it, the context counts what it held before."""
        opened = self._model()
        is_kept = False
        turn = None
        self._adapt(opened, request.adapters)
        try:
            with peers_of(opened.local.model, opened.local.session, request.n_answers) as (
                sessions,
                trouble,
            ):
                turn = self._prepare(opened, request, len(sessions) == 1)
                if turn is not None and request.n_answers > 1:
                    self._link.emit(events.AnswersBegun(len(sessions), trouble))
                if turn is not None and len(sessions) > 1:
                    is_kept = self._answer_together(opened, turn, sessions[1:])
                elif turn is not None:
                    is_kept = self._answer(opened, turn, request.sent_s)
        finally:
            if is_kept:
                opened.local.note_size(opened.local.session.length)
            opened.states.note_progress()
            self.settle(turn.meter if turn is not None else None)
        if is_kept:
            opened.earlier.keep()
            opened.earlier.give()
            opened.tuning.tune_kernels()

    def _prepare(self, opened: LoadedModel, request: Request, is_alone: bool) -> LocalTurn | None:
        """Return what writes the reply; None where the events say why there is none."""
        local = opened.local
        keeps_tools = request.has_results and bool(local.chat.tools)  # what its prompt tells of
        if not keeps_tools and not self._tools.offer(local):
            return None
        has_form = self._options.form is not None and self._options.form.form is not None
        # The form is that of the whole reply, in which a thought has no place.
        if has_form:
            local.chat.thinking = ThinkingMode(False)
        else:
            local.chat.thinking = ThinkingMode.parse(self._link.inbox.thinking)
        try:
            prompt = local.prompt_with_room(request)
        except NoRoomError as error:
            self._refuse(request, error.needed_tokens, local.session.n_ctx)
            return None
        if prompt.dropped_turns:
            self._tell_dropped(opened, prompt)
        opened.states.bring_back(prompt.all_ids)
        # Calls in one of several replies are text: who chooses among them has run none.
        if prompt.chat is not None and is_alone:
            calls = self._tools.splitter(local)
        else:
            calls = None
        note_progress = (
            partial(self._note_progress, opened) if is_alone else opened.states.note_progress
        )
        try:
            return LocalTurn(
                self._link,
                local,
                prompt,
                self._options,
                note_progress,
                calls,
                None if is_alone else 0,
            )
        except Cancelled:  # while the form of the answer was compiled
            self._link.emit(events.PromptStopped())
            return None

    def _refuse(self, request: Request, needed_tokens: int, n_ctx: int) -> None:
        if request.continuation is not None:
            reason = "the context is full: there is no room to go on (/new begins again)"
            self._link.emit(events.GenerationFailed(reason))
        else:
            self._link.emit(events.PromptRefused(needed_tokens, n_ctx))

    def _tell_dropped(self, opened: LoadedModel, prompt: TurnPrompt) -> None:
        ids = prompt.all_ids
        # what stays moves down in the cache: only what is new must be read
        opened.local.session.shift_towards(ids)
        unread = len(ids) - opened.states.reusable(ids)
        read_s = self._seconds_to_read(unread)
        self._link.emit(
            events.TurnsDropped(prompt.dropped_turns, prompt.dropped_tokens, unread, read_s)
        )

    def _seconds_to_read(self, n_tokens: int) -> float | None:
        if self._prefill_tps > 0:
            return n_tokens / self._prefill_tps
        return None

    def _note_progress(self, opened: LoadedModel) -> None:
        opened.measures.update_progress()
        opened.states.note_progress()

    def _answer(self, opened: LoadedModel, turn: LocalTurn, sent_s: float | None) -> bool:
        """Read the prompt and write the reply; False means that there is no reply and the turn does
        not count."""
        with (
            opened.measures.measuring(turn.meter, sent_s),
            self._link.running(turn.reply, turn.written),
        ):
            is_kept = turn.run()
        if turn.meter.read_tokens >= TELLING_TOKENS or not self._prefill_tps:
            self._prefill_tps = turn.meter.prefill_tps
        return is_kept

    def _answer_together(
        self, opened: LoadedModel, first: LocalTurn, peers: Sequence[Session]
    ) -> bool:
        """Write several replies; False means that there is none."""
        how = self._link, opened.local, first.prompt, self._options, lambda: None, None
        others = [LocalTurn(*how, at, session) for at, session in enumerate(peers, 1)]
        answers = Answers([first, *others], self._link)
        with self._link.running(answers, first.written):
            is_kept = answers.run()
        self._link.emit(events.AnswersFinished() if is_kept else events.PromptStopped())
        return is_kept

    def weigh(self, request: Request, draft: str) -> None:
        """Say what a request would cost."""
        opened = self._model()
        with opened.local.aside():
            ids = opened.local.prompt(request).all_ids
        kept = opened.states.reusable(ids)
        n_read = len(ids) - kept
        n_dropped = opened.local.session.length - kept
        self._link.emit(
            events.PromptWeighed(draft, kept, n_dropped, n_read, self._seconds_to_read(n_read))
        )

    def examine(self, answer: Future[Any]) -> None:
        """Measure the machine for the doctor, and put an ``app.machine.doctor.examine.Examination`` into
        ``answer``."""
        before = self._link.status  # the last reply's figures stay
        fulfil(answer, self._measured)  # an error is the doctor's to show, not a reply's
        self._link.update(status=before)

    def _measured(self) -> Any:
        assert self._options.examine is not None
        opened = self._opened
        if opened is None:
            kv_type = self._options.settings.kv_type_or_default
            return self._options.examine(None, None, kv_type, self._show_progress)
        local = opened.local
        return self._options.examine(
            local.model, local.session, local.session.kv_type, self._show_progress
        )

    def settle(self, meter: ReplyMeter | None = None) -> None:
        """Say that the thread is free again."""
        opened = self._opened
        if opened is not None:
            opened.ahead.settle(opened.local.session.length)
        self._set_status(
            EngineStatus(Activity.NO_MODEL if opened is None else Activity.READY, meter=meter)
        )

    def _set_status(self, status: EngineStatus) -> None:
        """Replace the status; threads and context hold whatever the thread is doing."""
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
