"""Order of the turns of one conversation: the running turn, the queue, and undo.

``ChatSession`` submits work to the engine thread and applies its events to the conversation. It
knows no screen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from app.backend.engine_thread import EngineThread
from app.backend.protocol import THREADS_AND_WEIGHTS, Opening
from app.conversations.branches import keep_as_alternatives
from app.conversations.conversation import (
    USER,
    ChatMessage,
    Conversation,
    Ending,
    PromptMessage,
    Role,
    prompt_message_of,
)
from app.conversations.journal import Journal, PartialReply
from app.conversations.pictures import Picture
from app.conversations.session_options import SessionOptions
from app.conversations.store import LoadedConversation, model_key
from app.documents.pictures import REFERENCE_START, without_pictures
from app.program.remote_model import ModelPlace
from app.session import events
from app.session.events import Event
from app.session.model_prompt import StartingPrompt, StartingPrompts
from app.session.reply_options import with_remembered, without_command_line
from app.session.request import Continuation, Request, dated
from app.session.running import AnswerSet, Phase, Running, Snapshot, reply_message
from app.session.summaries import Summaries
from app.session.tool_rounds import is_over, open_calls, settled_results
from app.text.clean_text import clean_text
from app.text.record import record
from app.tools.toolbox import REFUSED, summarize_calls
from engine.prompt.tools.calls import CallResult


class Admission(Enum):
    """Result of sending a message."""

    SENT = "sent"
    QUEUED = "queued"
    """The message waits until the engine is free."""
    NO_MODEL = "no model"
    FULL = "full"
    """The queue is full."""


@record
class TurnOutcome:
    """Effect of an event on the conversation."""

    is_restored: bool = False
    """Whether the turn ended without a reply and the conversation is as it was before."""
    returned_text: str = ""
    """Message that did not fit the context or whose pictures were not read, and that was removed
    from the conversation."""
    is_new: bool = False
    """Whether a new conversation has begun."""
    is_repeated: bool = False
    """Whether the reply was empty, and the model is asked once more without tools."""
    shown_events: tuple[Event, ...] | None = None
    """Events to show in place of one about a summary; None if the event itself is shown."""


@record
class Loading:
    """A model that is being opened."""

    previous: events.ModelLoaded | None = None
    """Model that was open before."""
    rereads: bool = False
    """Whether the new model will read the conversation."""
    begins_new: bool = False
    """Whether a new conversation begins once the model is open."""
    keeps_options: bool = False
    """Whether the conversation's options were chosen for the new model."""


MAX_QUEUED = 8
"""Limit on the messages that wait for their turn."""


class ChatSession:
    """Turns of one conversation, in order.

    Args:
        saving_patience_s: seconds that a turn waits to be saved; 0 for no wait.
        today: returns the date that new conversations name, or "" for none.

    Attributes:
        phase: current activity.
        unsent_texts: queued messages of the saved conversation from before the program ended,
            until the user gets them back.
    """

    def __init__(
        self,
        engine_thread: EngineThread,
        system: str | None,
        journal: Journal | None = None,
        saving_patience_s: float = 0.0,
        today: Callable[[], str] = str,
    ) -> None:
        self._engine_thread = engine_thread
        self._today = today
        self._saving_patience_s = saving_patience_s
        self.journal = journal or Journal()
        options = SessionOptions(adapters=engine_thread.adapters, date=today())
        self.conversation = Conversation(system or None, options=options)
        self._prompts = StartingPrompts(engine_thread, StartingPrompt(system or None))
        self.model: events.ModelLoaded | None = None
        self.phase = Phase.FREE
        self._loading = Loading()
        """Model that is being opened, or was opened last."""
        self._running: Running | None = None
        """Turn that has no complete reply yet; None between two turns."""
        self.summaries = Summaries(self, engine_thread)
        self._queued: deque[tuple[str, str, float]] = deque()
        """Waiting messages: text, text with large pastes folded, and time of sending."""
        self.recovered_texts: list[str] = []

    @property
    def is_busy(self) -> bool:
        """Whether something must end before the next turn."""
        return self.phase is not Phase.FREE

    @property
    def is_loading(self) -> bool:
        """Whether a model is being opened."""
        return self.phase is Phase.LOADING

    @property
    def is_answering(self) -> bool:
        """Whether a reply is being written."""
        return self.phase is Phase.ANSWERING

    @property
    def is_calling(self) -> bool:
        """Whether tool calls of the last reply run or await the user's consent."""
        return self.phase is Phase.CALLING

    @property
    def is_tuning(self) -> bool:
        """Whether a search for the best settings runs."""
        return self.phase is Phase.TUNING

    @property
    def running(self) -> Running | None:
        """The running turn; None between two turns."""
        return self._running

    @property
    def queued_texts(self) -> list[str]:
        """Messages in the queue, oldest first."""
        return [text for text, _, _ in self._queued]

    # ---- options

    @property
    def request_options(self) -> SessionOptions:
        """Choices that hold for the next request: those of the conversation, else of the settings
        and the model."""
        options = self.conversation.options
        thinking = options.thinking
        if not thinking and self.model is not None:
            thinking = self.model.thinking
        return SessionOptions(
            {**self._engine_thread.settings.chosen_sampling, **options.sampling},
            thinking,
            self._engine_thread.form or options.form,
            options.adapters,
        )

    def change_options(self, **changes: Any) -> None:
        """Replace fields of the conversation's options from the next request on, and save them."""
        options = replace(self.conversation.options, **changes)
        if options != self.conversation.options:
            self.conversation.options = options
            self.journal.save_options(self.conversation)

    # ---- models

    def load(
        self,
        path: ModelPlace,
        keeps: bool = False,
        rereads: bool = True,
        keeps_options: bool = False,
    ) -> bool:
        """Open a model; return False while the engine is busy.

        Args:
            keeps: whether the conversation continues with the new model; otherwise a new one
                begins.
            rereads: whether the model reads the conversation before anything new is asked.
            keeps_options: whether the conversation's options were chosen for this model.
        """
        request = self.answered_request()
        # Another model thinks in the mode that was remembered for it.
        thinking = ""
        if self.model is None or keeps_options:
            thinking = self.conversation.options.thinking
        request = replace(request, options=replace(request.options, thinking=thinking))
        opening = Opening(path, request, self.journal.state_path, keeps, rereads)
        if self.is_busy or not self._engine_thread.open(opening):
            return False
        if self.model is None and self.conversation.is_empty:
            # The model owns the conversation even while messages wait for it.
            self.journal.set_model(path.stem, model_key(path))
        self.phase = Phase.LOADING
        self._loading = Loading(
            previous=self.model,
            rereads=keeps and rereads and bool(request.n_turns),
            begins_new=not keeps and not self.conversation.is_empty,
            keeps_options=keeps_options,
        )
        self.model = None
        return True

    def tune(self, parts: tuple[str, ...] = THREADS_AND_WEIGHTS) -> bool:
        """Search for the best threads or other parts of tuning; return False while busy or without
        a model."""
        return self._start(Phase.TUNING, lambda: self._engine_thread.tune(parts))

    def stop_tuning(self) -> None:
        """Stop the search for the best settings, if it runs."""
        if self.is_tuning:
            self._engine_thread.cancel()

    def use_adapters(self, adapters: tuple[str, ...]) -> bool:
        """Use these adapters from the next message on; return False while busy or without a
        model."""
        return self._start(Phase.ADAPTING, lambda: self._engine_thread.use_adapters(adapters))

    def read(self, text: str, folded: str, title: str) -> bool:
        """Read the beginning of a message that the user will complete, and save the conversation
        with it; return False while busy or without a model.

        Args:
            title: title of the conversation if it is empty.
        """
        if self.is_busy or self.model is None:
            return False
        if self.conversation.is_empty:
            self.journal.begin(title=title)
        self.conversation.add_user(text, folded)
        self.journal.save_question(self.conversation, is_replacing=False)
        self._wait_for_disk()
        self._engine_thread.inbox.state_path = self.journal.state_path
        request = Request(_messages_of(self.conversation), options=self.request_options)
        return self._start(Phase.REREADING, lambda: self._engine_thread.read(request))

    def _start(self, phase: Phase, submit: Callable[[], bool]) -> bool:
        """Submit work to an idle model and enter its phase; return False if it was not accepted."""
        if self.is_busy or self.model is None or not submit():
            return False
        self.phase = phase
        return True

    # ---- conversations

    def open_saved(self, opened: LoadedConversation, model_path: ModelPlace | None = None) -> bool:
        """Continue a saved conversation; return False while the engine is busy.

        Args:
            model_path: model that wrote the conversation and is opened for it; None for the model
                that is open.
        """
        if self.is_busy:
            return False
        self._leave_conversation()
        self.conversation = opened.saved.conversation
        self.recovered_texts = list(opened.saved.queued_texts)
        self.journal.resume(opened)
        settings = self._engine_thread.settings
        options = without_command_line(self.conversation.options, settings)
        if self.model is None:
            options = replace(options, adapters=self._engine_thread.adapters or options.adapters)
        elif model_path is None and self._engine_thread.recalls_choices:
            options = with_remembered(options, self.model.path, settings)
        self.change_options(**vars(options))
        if self._queued:
            self._save_queue()
        if model_path is None:
            self._submit_conversation()
        else:
            self.load(model_path, keeps=True, rereads=False, keeps_options=True)
        return True

    def fork(self, n_messages: int) -> bool:
        """Continue a copy of the first ``n_messages`` messages; return False while the engine is
        busy."""
        if self.is_busy:
            return False
        original = self.conversation
        copy = Conversation(
            original.system, original.messages[:n_messages], options=original.options
        )
        # If the copy ends among the dropped messages, all of it fits the context again.
        if original.n_dropped < n_messages:
            copy.n_dropped = original.n_dropped
            copy.summaries = original.summaries
        copy.drop_gaps()
        copy.has_interrupted_turn = original.has_interrupted_turn
        self.conversation = copy
        forked_from = self.journal.id
        self._leave_conversation(original)
        self.journal.begin(forked_from)
        self._save_queue()
        self._submit_conversation()
        return True

    def start_new(
        self,
        system: str | None,
        sampling: Mapping[str, float] | None = None,
        persona: str = "",
        *,
        is_private: bool = False,
    ) -> bool:
        """Begin a new conversation with a system prompt; return False while the engine is busy.

        Args:
            sampling: parameters that replace those chosen by ``/set``; None to leave them.
            persona: name of the persona that the system prompt is from; empty if it is from none.
            is_private: whether nothing of the conversation is saved.
        """
        if self.is_busy:
            return False
        options = replace(self.conversation.options, persona=persona)
        if sampling is not None:
            options = replace(options, sampling=sampling)
        self._begin_conversation(system, options, is_private=is_private)
        self._submit_conversation()
        return True

    def start_next(self, *, is_private: bool = False, abandons_present: bool = False) -> bool:
        """Begin a new conversation with the system prompt saved for the model, or else that of the
        present conversation; return False while the engine is busy.

        Args:
            is_private: whether nothing of the conversation is saved.
            abandons_present: whether the present conversation will be deleted.
        """
        if self.is_busy:
            return False
        prompt = self._prompts.next_after(self.conversation, _path_of(self.model))
        if abandons_present:
            self.journal.abandon()
        sampling = None
        if prompt.persona != self.conversation.options.persona:
            sampling = prompt.sampling or None
        return self.start_new(prompt.system, sampling, prompt.persona, is_private=is_private)

    def request_title(self) -> bool:
        """Let the model write a title while it is idle; return False if that must wait."""
        if not self.journal.id:
            return False
        return self._engine_thread.write_title(self.answered_request(), self.journal.id)

    def _begin_conversation(
        self, system: str | None, options: SessionOptions, *, is_private: bool = False
    ) -> None:
        self._leave_conversation()
        options = replace(options, date=self._today())
        self.conversation = Conversation(system or None, options=options)
        self.journal.begin(is_private=is_private)
        self._save_queue()
        self._engine_thread.inbox.state_path = None

    def _leave_conversation(self, conversation: Conversation | None = None) -> None:
        """Let the next conversation have the queue."""
        if self._queued:
            self.journal.save_queue(conversation or self.conversation, self.recovered_texts)
        self.recovered_texts = []

    def _submit_conversation(self) -> None:
        self._engine_thread.inbox.state_path = self.journal.state_path
        if self.model is not None:
            self._engine_thread.continue_conversation(
                self.answered_request(), self.journal.state_path
            )

    # ---- what a conversation contains

    @property
    def has_context(self) -> bool:
        """Whether the context contains a question with its reply."""
        return bool(self.answered_request().n_turns)

    @property
    def last_message(self) -> ChatMessage | None:
        """Newest message of either side; None if there is none."""
        if not self.conversation.messages:
            return None
        return self.conversation.messages[-1]

    @property
    def first_in_context(self) -> ChatMessage | None:
        """Oldest message that the model sees; None if it sees none."""
        messages = self.conversation.messages[self.conversation.n_dropped :]
        if not messages:
            return None
        return messages[0]

    @property
    def can_continue(self) -> bool:
        """Whether the last message is an incomplete reply."""
        last = self.last_message
        return (
            last is not None and last.role is Role.ASSISTANT and last.ending is not Ending.COMPLETE
        )

    def answered_request(self) -> Request:
        """Return the conversation without an unanswered message at its end."""
        messages = _messages_of(self.conversation, with_unanswered=False)
        return Request(messages, options=self.request_options)

    # ---- messages

    def submit(self, text: str, folded: str = "", pictures: tuple[Picture, ...] = ()) -> Admission:
        """Send a message, or queue it while the engine is busy. A message with pictures cannot
        wait.

        Args:
            folded: text with large pastes folded; empty if nothing is folded.
        """
        if self.is_busy:
            if len(self._queued) >= MAX_QUEUED or pictures:
                return Admission.FULL
            self._queued.append((text, folded, self._engine_thread.now_s()))
            self._save_queue()
            if self.summaries.is_writing_automatically:
                self.stop()
            return Admission.QUEUED
        if self.model is None:
            return Admission.NO_MODEL
        self._ask(text, folded, pictures=pictures)
        return Admission.SENT

    def send_next(self) -> bool:
        """Send the oldest message of the queue; return False if there is none or the engine is not
        free."""
        if self.is_busy or self.model is None or not self._queued:
            return False
        self._ask(*self._queued.popleft())
        return True

    def take_back_queued(self) -> str | None:
        """Remove the newest message from the queue and return it; None if the queue is empty."""
        if not self._queued:
            return None
        text = self._queued.pop()[0]
        self._save_queue()
        return text

    def submit_edit(self, text: str, n_turn: int, folded: str = "") -> bool:
        """Ask another message in place of that of a turn; return False while busy.

        The earlier message stays with everything after it, as another branch.

        Args:
            n_turn: index of the turn, from 0.
        """
        if self.is_busy or self.model is None:
            return False
        snapshot = Snapshot.of(self.conversation)
        replaced = tuple(self.conversation.cut(2 * n_turn))
        keep_as_alternatives(self.conversation.add_user(text, folded), replaced)
        self._send(Running(snapshot, text, replaced))
        return True

    def submit_edited_reply(self, text: str, n_turn: int) -> bool:
        """Continue an edited reply in place of the reply; return False while busy.

        The earlier reply stays with everything after it, as another branch.

        Args:
            n_turn: index of the turn, from 0.
        """
        if self.is_busy or self.model is None:
            return False
        snapshot = Snapshot.of(self.conversation)
        replaced = tuple(self.conversation.cut(2 * n_turn + 1))
        reply = replaced[0]
        continuation = Continuation(prompt_message_of(reply), reply.thinking, text)
        self._send(Running(snapshot, replaced=replaced, continuation=continuation))
        return True

    def weigh_edit(self, text: str, n_turn: int, is_reply: bool = False) -> bool:
        """Request the cost of an edit, which is reported as ``EditCostMeasured``."""
        if self.is_busy or self.model is None:
            return False
        messages = _messages_of(self.conversation)
        index = len(messages) - len(self.conversation.messages) + 2 * n_turn
        if is_reply:
            reply = self.conversation.messages[2 * n_turn + 1]
            continuation = Continuation(prompt_message_of(reply), reply.thinking, text)
            return self._engine_thread.weigh(Request(messages[: index + 1], continuation), text)
        return self._engine_thread.weigh(
            Request((*messages[:index], PromptMessage(USER, text))), text
        )

    def read_ahead(self, text: str, is_read: bool, is_settled: bool = False) -> bool:
        """Count the tokens of a draft while the engine is idle; return False if it is not idle.

        Args:
            is_read: whether the model also reads the draft.
            is_settled: whether the draft consists of documents, which will not change.
        """
        draft = PromptMessage(USER, clean_text(text))
        request = Request(_messages_of(self.conversation, draft, with_unanswered=False))
        return self._engine_thread.read_ahead(request, text, is_read, is_settled)

    def send_without_joined(self) -> bool:
        """Send the refused message again without the unanswered one that was sent with it; return
        False if there was none."""
        running = self._running
        if running is None or running.joined is None or running.sent_text is None:
            return False
        running.snapshot.restore(self.conversation)
        self.conversation.has_interrupted_turn = False
        self._ask(running.sent_text, snapshot=running.snapshot)
        return True

    def regenerate(self, n_answers: int = 1) -> bool:
        """Answer the last message again; return False if there is none or the engine is not free.

        Args:
            n_answers: number of replies that are written together. The first one becomes part of
                the conversation; the others and the earlier ones stay as other branches.
        """
        conversation = self.conversation
        if self.is_busy or self.model is None or conversation.is_empty:
            return False
        snapshot = Snapshot.of(conversation)
        if not conversation.awaits_reply:
            reply = conversation.drop_reply()
            self._send(Running(snapshot, replaced=(reply,)), n_answers=n_answers)
            return True
        question = conversation.messages[-1]
        if not question.results:
            # A new object makes the journal write the question as used now.
            conversation.add_user(question.text, question.folded, question.pictures)
        self._send(Running(snapshot), n_answers=n_answers)
        return True

    def compare(self, place: Path) -> bool:
        """Answer the last message with another model, next to the reply that there is; return False
        if there is none or the engine is not free.

        The other model is open only for this reply, and the open one stays that of the
        conversation.
        """
        conversation = self.conversation
        if self.is_busy or self.model is None or conversation.is_empty:
            return False
        if conversation.awaits_reply:
            return False
        state = self.journal.state_path
        back = Opening(Path(self.model.path), self.answered_request(), state, rereads=False)
        snapshot = Snapshot.of(conversation)
        reply = conversation.drop_reply()
        options = _options_of_other_model(self._engine_thread, place, self.request_options)
        running = Running(snapshot, replaced=(reply,), compared=reply, may_call=False)
        request = self._begin_turn(running, options)
        if self._engine_thread.compare(place, request, back):
            self.phase = Phase.ANSWERING
        return True

    def change_conversation(self, change: Callable[[Conversation], object]) -> bool:
        """Change the conversation and save that; return False while busy.

        Args:
            change: shows or deletes a branch, or replaces the system prompt.
        """
        if self.is_busy:
            return False
        change(self.conversation)
        self.journal.save_options(self.conversation)
        self.journal.save_turn_end(self.conversation)
        self._submit_conversation()
        return True

    def continue_reply(self) -> bool:
        """Continue the last reply; return False if it is complete or the engine is not free."""
        if self.is_busy or self.model is None or not self.can_continue:
            return False
        snapshot = Snapshot.of(self.conversation)
        reply = self.conversation.drop_reply()
        is_loop = reply.ending is Ending.REPEATED
        continuation = Continuation(prompt_message_of(reply), reply.thinking, is_loop=is_loop)
        self._send(Running(snapshot, replaced=(reply,), continuation=continuation))
        return True

    def run_calls(self, allowed: frozenset[str]) -> None:
        """Run the tool calls of the last reply, unless their results are known.

        Args:
            allowed: ids of the calls that the user permits.
        """
        refused = {
            call.call_id: REFUSED
            for call in open_calls(self.conversation)
            if call.call_id not in allowed
        }
        settled = {**settled_results(self.conversation), **refused}
        self._engine_thread.call_tools(self.conversation.messages[-1].calls, settled)

    def stop(self) -> None:
        """Stop the current activity, if there is one."""
        if self.is_busy:
            self._engine_thread.cancel()

    def _ask(
        self,
        text: str,
        folded: str = "",
        sent_s: float | None = None,
        snapshot: Snapshot | None = None,
        pictures: tuple[Picture, ...] = (),
    ) -> None:
        conversation = self.conversation
        if conversation.is_empty:  # It may have waited for its first message over midnight.
            conversation.options = replace(conversation.options, date=self._today())
        running = Running(snapshot or Snapshot.of(conversation), text)
        running.has_pictures = bool(pictures) or REFERENCE_START in text
        running.joined = conversation.unanswered_message
        if text in self.recovered_texts[:1]:
            del self.recovered_texts[0]
        if running.joined is not None:
            pictures = (*running.joined.pictures, *pictures)
        joined_text, folded = conversation.join_unanswered(text, folded)
        conversation.add_user(clean_text(joined_text), folded, pictures)
        self._send(running, sent_s)
        self._save_queue()

    def _send(self, running: Running, sent_s: float | None = None, n_answers: int = 1) -> None:
        request = self._begin_turn(running, self.request_options)
        if self._engine_thread.reply(replace(request, n_answers=n_answers, sent_s=sent_s)):
            # The engine is free, so its queue has room.
            self.phase = Phase.ANSWERING

    def _begin_turn(self, running: Running, options: SessionOptions) -> Request:
        """Save the question of a turn, and return its request."""
        self._running = running
        self.journal.save_question(self.conversation, bool(running.replaced))
        self._wait_for_disk()
        self._engine_thread.inbox.state_path = self.journal.state_path
        messages = _messages_of(self.conversation)
        is_blind = self.model is not None and not self.model.sees_pictures
        if is_blind and running.joined is not None and not running.has_pictures:
            # Pictures of the unanswered message do not keep the new one from being answered.
            *earlier, last = messages
            messages = (*earlier, replace(last, text=without_pictures(last.text)))
        return Request(
            messages,
            running.continuation,
            may_call=running.may_call,
            options=options,
        )

    def _save_queue(self) -> None:
        """Write the queue to disk now, so that a kill loses nothing."""
        self.journal.save_queue(self.conversation, [*self.recovered_texts, *self.queued_texts])

    def save_partial(self) -> None:
        """Save the running reply as far as it is written."""
        if not self.is_loading:
            # A new conversation gets its path only when it is saved.
            self._engine_thread.inbox.state_path = self.journal.state_path
        running = self._running
        if running is None or not self.is_answering:
            return
        ids, raw = self._engine_thread.written
        if running.answers is not None:
            message = running.answers.message(running.alternatives, ids, raw)
            if message is not None:
                self.journal.save_answers(self.conversation, message)
            return
        reply = running.reply
        if reply.text or reply.thought:
            partial = PartialReply(
                reply.text, reply.thought, ids, raw, running.is_edited, running.alternatives
            )
            self.journal.save_partial(self.conversation, partial)

    def _wait_for_disk(self) -> None:
        if self._saving_patience_s:
            self.journal.wait_until_saved(self._saving_patience_s, waits_for_room=False)

    # ---- events of the engine

    def handle(self, event: Event) -> TurnOutcome:
        """Apply an event to the conversation and return its effect."""
        if self.phase is Phase.COMPACTING:
            shown_events = self.summaries.take(event)
            if shown_events is not None:
                return TurnOutcome(shown_events=shown_events)
        match event:
            case (
                events.TextGenerated()
                | events.ThoughtGenerated()
                | events.ThinkingFinished()
                | events.ReplyReopened()
            ):
                if self._running is not None:
                    self._running.reply.take(event)
            case events.AnswersBegun():
                if self._running is not None and event.n > 1:
                    model = event.other_model or _title_of(self.model)
                    self._running.answers = AnswerSet(event.n, model, self._running.compared)
            case events.AnswerEvent():
                if self._running is not None and self._running.answers is not None:
                    self._running.answers.add(event.index, event.event)
            case events.GenerationFinished():
                return TurnOutcome(is_repeated=self._finish_reply(event))
            case events.AnswersFinished():
                self._finish_answers()
            case events.GenerationFailed(partial_reply=partial) if partial is not None:
                self._finish_reply(partial)
            case events.GenerationFailed() if self._running and self._running.returns_pictures:
                return self._take_back()
            case events.GenerationFailed() | events.PromptStopped():
                return TurnOutcome(is_restored=self.end_without_reply())
            case events.PromptRefused():
                return self._take_back()
            case events.TurnsDropped():
                self._drop_turns(event.n_turns)
            case events.ToolsAnswered():
                self._send_results(event.results)
            case events.ModelLoaded():
                return TurnOutcome(is_new=self._finish_loading(event))
            case events.ModelFailed():  # The conversation stays for the next model.
                self.model = None
                self.phase = Phase.FREE
            case events.ModelSwitchFailed():
                self._keep_model(event.is_open)
            case events.ConversationReread() | events.TuningEnded():
                self.phase = Phase.FREE
            case events.AdaptersChanged():
                self.phase = Phase.FREE
                if not event.trouble:
                    self.change_options(adapters=event.adapters)
            case events.TitleWritten():
                self._use_title(event)
        return TurnOutcome()

    def end_without_reply(self) -> bool:
        """End the turn without a reply.

        Returns:
            Whether the conversation is as it was before; otherwise the question stays unanswered.
        """
        is_restored = self._running is not None and bool(self._running.replaced)
        if self._running is not None and is_restored:
            self._running.snapshot.restore(self.conversation)
        self._end_turn()
        return is_restored

    def _take_back(self) -> TurnOutcome:
        """Remove the refused message from the conversation."""
        running = self._running
        if running is None or running.sent_text is None:
            return TurnOutcome(is_restored=self.end_without_reply())
        running.snapshot.restore(self.conversation)
        self._end_turn()
        return TurnOutcome(returned_text=running.sent_text)

    def _end_turn(self) -> None:
        self._running = None
        self.phase = Phase.FREE
        self.journal.save_turn_end(self.conversation)

    def _finish_answers(self) -> None:
        """Add the first of several replies to the conversation, with the others as
        alternatives."""
        running = self._running
        if running is None or running.answers is None:
            return
        message = running.answers.message(running.alternatives)
        if message is not None:
            self.conversation.append_reply(message)
            self._end_turn()
            self._wait_for_disk()

    def _finish_reply(self, done: events.GenerationFinished) -> bool:
        """Add the running reply to the conversation.

        Returns:
            Whether the reply was empty, so that it is requested once more without tools.
        """
        running = self._running
        if running is None:
            return False
        if running.is_lost(done):
            running.repeat_without_tools()
            self._send(running)
            return True
        message = reply_message(running.reply, done, _title_of(self.model))
        message.calls = done.calls
        message.calls_at = done.calls_at
        if running.continuation is None:
            message.server_fields = done.server_fields
        continued = running.continued
        if continued is not None and continued.figures is not None:
            message.figures = continued.figures.continued_by(done.figures)
        message.is_edited = running.is_edited or (continued is not None and continued.is_edited)
        message.alternatives = running.alternatives
        message.n_older = len(running.alternatives)
        if continued is not None:
            message.n_older = continued.n_older
        self.conversation.append_reply(message)
        self._end_turn()
        if message.calls:
            self.phase = Phase.CALLING
        self._wait_for_disk()
        return False

    def _send_results(self, results: tuple[CallResult, ...]) -> None:
        """Send the results of tool calls to the model."""
        running = Running(Snapshot.of(self.conversation), may_call=not is_over(self.conversation))
        calls = self.conversation.messages[-1].calls
        self.conversation.add_results(results).folded = summarize_calls(calls, results)
        self._send(running)

    def _drop_turns(self, n_turns: int) -> None:
        """Mark the oldest turns as outside the context."""
        conversation = self.conversation
        n_dropped = conversation.n_dropped + 2 * n_turns
        conversation.n_dropped = min(n_dropped, len(conversation.messages))
        self.journal.save_context(conversation)

    def _finish_loading(self, model: events.ModelLoaded) -> bool:
        """Use the opened model; return whether a new conversation begins with it."""
        loading = self._loading
        self._loading = Loading()
        self.model = model
        options = self.conversation.options
        is_other = loading.previous is not None and loading.previous.path != model.path
        if is_other and not loading.keeps_options:
            options = replace(options, sampling={}, thinking="")
        if self._engine_thread.recalls_choices:
            options = with_remembered(options, model.path, self._engine_thread.settings)
        if loading.rereads:
            self.phase = Phase.REREADING
        else:
            self.phase = Phase.FREE
        self.journal.set_model(model.title, model_key(model.path))
        prompt = self._prompts.with_model(
            model.path, _path_of(loading.previous), self.conversation, loading.begins_new
        )
        sampling = {**prompt.sampling, **options.sampling}
        options = replace(options, persona=prompt.persona, sampling=sampling)
        if loading.begins_new:
            self._begin_conversation(prompt.system, options)
        else:
            if prompt.system != self.conversation.system:
                self.conversation.system = prompt.system
                self.journal.save_options(self.conversation)
            self.change_options(**vars(options))
        return loading.begins_new

    def _keep_model(self, is_open: bool) -> None:
        """Use the previous model again; if it is not open, it reads the conversation after
        opening."""
        if is_open:
            self.model = self._loading.previous
            self._loading = Loading()
            self.phase = Phase.FREE
        else:
            self._loading = Loading(self._loading.previous, rereads=self.has_context)

    def _use_title(self, event: events.TitleWritten) -> None:
        """Rename the conversation unless it was renamed meanwhile."""
        if event.conversation_id == self.journal.id and self.journal.needs_title(self.conversation):
            self.journal.rename(event.title)


def _title_of(model: events.ModelLoaded | None) -> str:
    if model is None:
        return ""
    return model.title


def _path_of(model: events.ModelLoaded | None) -> str:
    if model is None:
        return ""
    return model.path


def _options_of_other_model(
    engine_thread: EngineThread, place: Path, present: SessionOptions
) -> SessionOptions:
    """Return choices for one reply of another model: of the present ones, only the form."""
    options = SessionOptions(form=present.form)
    if engine_thread.recalls_choices:
        options = with_remembered(options, place, engine_thread.settings)
    return replace(options, sampling={**engine_thread.settings.chosen_sampling, **options.sampling})


def _messages_of(
    conversation: Conversation, *drafts: PromptMessage, with_unanswered: bool = True
) -> tuple[PromptMessage, ...]:
    """Return the messages of a request, and drafts after them. The system prompt names the date on
    which the conversation began."""
    messages = conversation.prompt_messages(with_unanswered)
    return dated((*messages, *drafts), conversation.options.date)
