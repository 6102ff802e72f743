"""The order of turns: the message being answered, the queue, and the state after a stop or a
failure.

Keeps the conversation true to what the engine holds. Knows the bridge, no widget.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum

from app.backend.engine_bridge import EngineBridge
from app.backend.protocol import THREADS_AND_WEIGHTS, Opening
from app.backend.reply_text import ReplyCollector, TextEvent
from app.conversations.conversation import (
    MOST_OTHERS,
    USER,
    ChatMessage,
    Conversation,
    Ending,
    PromptMessage,
    Role,
    said_of,
)
from app.conversations.journal import Journal, PartialReply
from app.conversations.store import LoadedConversation, model_key
from app.program.remote_model import ModelPlace
from app.session import events
from app.session.events import Event
from app.session.request import Continuation, Request
from app.text.clean_text import clean_text
from app.text.record import record
from app.tools.toolbox import folded
from engine.prompt.tools.calls import CallResult


class Admission(Enum):
    """Result of sending a message."""

    ASKED = "asked"
    QUEUED = "queued"
    """It is answered when the engine is free."""
    NO_MODEL = "no model"
    FULL = "full"
    """Too many wait already."""


@record
class TurnOutcome:
    """What came of an event for the conversation."""

    is_as_before: bool = False
    """Whether the turn has ended without a reply, and what it would have replaced is back."""
    given_back: str = ""
    """A message that was refused, and is part of the conversation no more."""
    is_new: bool = False
    """Whether a new conversation has begun."""


MAX_QUEUED = 8
SENT_TOGETHER = "the message before was not answered: both are sent together"
LEFT_OUT = (
    "the message before, which was not answered, is left out: both together do not fit the context"
)


class ChatSession:
    """The order of turns in one conversation.

    ``saving_patience_s``: how long a turn waits to be on disk.
    """

    def __init__(
        self,
        bridge: EngineBridge,
        system: str | None,
        journal: Journal | None = None,
        saving_patience_s: float = 0.0,
    ) -> None:
        self._bridge = bridge
        self._saving_patience_s = saving_patience_s
        self.journal = journal or Journal()
        self.conversation = Conversation(system or None, adapters=bridge.adapters)
        self.model: events.ModelLoaded | None = None
        self.is_loading = False
        self.is_answering = False
        self.is_calling = False
        """Whether the calls of the last reply wait for a word of the user, or run."""
        self.is_tuning = False
        self.is_adapting = False
        """Whether other adapters are being put on the model."""
        self.is_rereading = False
        """Whether a newly opened model reads the conversation, or will."""
        self.begins_new = False
        """Whether the conversation ends when the model that is being opened is there."""
        self._model_before: events.ModelLoaded | None = None
        self._queued: deque[tuple[str, str, float]] = deque()
        """Texts that wait, with their large pastes folded, and since when."""
        self.left_waiting: list[str] = []
        """Queued messages of the saved conversation from before the program ended, until the user
        has them back."""
        self.growing = ReplyCollector()
        self._answers: list[ReplyCollector] = []
        self._ended: dict[int, events.GenerationFinished] = {}
        """Of several replies that are written together: their texts, and those that have ended."""
        self._replaced: list[ChatMessage] = []
        """Messages that the running turn replaces; they come back if it has no reply."""
        self.joined: ChatMessage | None = None
        """The unanswered message of an earlier run that the running turn's message goes with."""
        self._left_out: ChatMessage | None = None
        """One that the running turn's message did not fit with; it comes back if that does not fit
        alone either."""
        self._own_text = ""
        """The running turn's message without it."""
        self._begun: Continuation | None = None
        """The reply with which the running turn goes on."""
        self._is_asked_again = False
        """Whether the running turn's message stood in the conversation before."""

    @property
    def is_busy(self) -> bool:
        """Whether the engine is loading, reading a conversation again, answering, calling, adapting
        or measuring."""
        is_at_work = self.is_loading or self.is_rereading or self.is_adapting or self.is_tuning
        return is_at_work or self.is_answering or self.is_calling

    @property
    def queued_texts(self) -> list[str]:
        """The messages that wait, the oldest first."""
        return [text for text, _, _ in self._queued]

    # ---- what the user asks for

    def load(self, path: ModelPlace, keeps: bool = False, rereads: bool = True) -> bool:
        """Open a model with a new conversation, or one that it ``keeps`` and reads first; False
        while busy."""
        opening = Opening(path, self._held(), self.journal.state_path, keeps, rereads)
        if self.is_busy or not self._bridge.open(opening):
            return False
        self._model_before = self.model
        self.model = None
        # it is this model's, also where it waits
        if self._model_before is None and self.conversation.is_empty:
            self.journal.note_model(path.stem, model_key(path))
        self.is_loading = True
        self.is_rereading = keeps and bool(opening.request.n_turns) and rereads
        self.begins_new = not keeps and not self.conversation.is_empty
        return True

    def open_saved(self, opened: LoadedConversation) -> bool:
        """Go on with a saved conversation; False while the engine is busy.

        The model, if there is one, is told.
        """
        if self.is_busy:
            return False
        self._leave_conversation()
        self.conversation = opened.saved.conversation
        self.left_waiting = list(opened.saved.waiting)
        self.journal.adopt(opened)
        # the command line goes before what is saved
        if self.model is None and self._bridge.adapters:
            self._note_adapters(self._bridge.adapters)
        if self._queued:
            self._save_queue()
        self._send_conversation()
        return True

    def fork(self, n_messages: int) -> bool:
        """Go on with a copy that ends after ``n_messages`` messages; False while the engine is
        busy."""
        if self.is_busy:
            return False
        before = self.conversation
        messages = list(before.messages[:n_messages])
        # What was dropped before its end had room once, and has again.
        if before.n_dropped < n_messages:
            n_dropped = before.n_dropped
        else:
            n_dropped = 0
        self.conversation = Conversation(
            before.system, messages, n_dropped, adapters=before.adapters
        )
        self.conversation.drop_gaps()
        self.conversation.is_cut_off = before.is_cut_off
        forked_from = self.journal.id
        self._leave_conversation(before)
        self.journal.begin(forked_from)
        self._save_queue()
        self._send_conversation()
        return True

    def _send_conversation(self) -> None:
        self._bridge.state_path = self.journal.state_path
        if self.model is not None:
            self._bridge.go_on_with(self._held(), self.journal.state_path)

    @property
    def has_context(self) -> bool:
        """Whether the context contains a question with its reply."""
        return bool(self._held().n_turns)

    def _held(self) -> Request:
        """What was said and answered."""
        return Request(
            self.conversation.said(with_unanswered=False), adapters=self.conversation.adapters
        )

    def submit(self, text: str, folded: str = "") -> Admission:
        """Ask now, or wait in line.

        ``folded``: the text with its large pastes folded; "" where there are none.
        """
        if not self.is_busy and self.model is None:
            return Admission.NO_MODEL
        if self.is_busy:
            if len(self._queued) >= MAX_QUEUED:
                return Admission.FULL
            self._queued.append((text, folded, self._bridge.now_s()))
            self._save_queue()
            return Admission.QUEUED
        self._begin(text, folded)
        return Admission.ASKED

    def take_back_queued(self) -> str | None:
        """Return the newest message that waits, which is asked no more; None when none waits."""
        if not self._queued:
            return None
        text = self._queued.pop()[0]
        self._save_queue()
        return text

    def submit_edit(self, text: str, n_turn: int, folded: str = "") -> bool:
        """Ask in place of an earlier message, of turn ``n_turn`` from 0 on, and all after it; False
        while busy."""
        if self.is_busy or self.model is None:
            return False
        self._replaced = self.conversation.cut(2 * n_turn)
        self.conversation.add_user(text, folded)
        self._send()
        return True

    def submit_edited_reply(self, text: str, n_turn: int) -> bool:
        """Go on with the reply of a turn from another text, in place of it and all after it; False
        while busy."""
        if self.is_busy or self.model is None:
            return False
        self._replaced = self.conversation.cut(2 * n_turn + 1)
        reply = self._replaced[0]
        self._send(Continuation(said_of(reply), reply.thinking, text))
        return True

    def weigh_edit(self, text: str, n_turn: int, is_reply: bool = False) -> bool:
        """Ask the engine what that would cost; the answer is a ``PromptWeighed``."""
        if self.is_busy or self.model is None:
            return False
        said = self.conversation.said()
        at = len(said) - len(self.conversation.messages) + 2 * n_turn
        if is_reply:
            before = said[: at + 1]
            reply = self.conversation.messages[2 * n_turn + 1]
            return self._bridge.weigh(
                Request(before, Continuation(said_of(reply), reply.thinking, text)), text
            )
        return self._bridge.weigh(Request((*said[:at], PromptMessage(USER, text))), text)

    def read_ahead(self, text: str, is_read: bool, is_settled: bool = False) -> bool:
        """Have the next message counted as far as it is written, and read while nothing is asked;
        False while it waits.

        Args:
            is_read: whether to read it too.
            is_settled: whether it is of documents, which stay.
        """
        said = self.conversation.said(with_unanswered=False)
        return self._bridge.read_ahead(
            Request((*said, PromptMessage(USER, clean_text(text)))), text, is_read, is_settled
        )

    def want_title(self) -> bool:
        """Have the model write a title while nothing is asked; False where that must wait."""
        return bool(self.journal.id) and self._bridge.write_title(self._held(), self.journal.id)

    def ask_next(self) -> bool:
        """Ask what has waited longest; False when nothing waits or the engine is not free."""
        if self.is_busy or self.model is None or not self._queued:
            return False
        self._begin(*self._queued.popleft())
        return True

    def ask_without_joined(self) -> bool:
        """Ask what was refused once more, without the unanswered message it went with; False where
        none did."""
        left_out = self.joined
        if left_out is None:
            return False
        text = self._take_back().given_back
        self.conversation.is_cut_off = False
        self._begin(text)
        self._left_out = left_out
        return True

    def regenerate(self, n_answers: int = 1) -> bool:
        """Answer the last message again; False when there is none or the engine is not free.

        Args:
            n_answers: that are written together; the conversation goes on with the first, or with
                what ``choose`` says.
        """
        if self.is_busy or self.model is None or self.conversation.is_empty:
            return False
        if self.conversation.awaits_reply and self.conversation.messages[-1].results:
            self._send(n_answers=n_answers)
        elif self.conversation.awaits_reply:
            folded = self.conversation.messages[-1].folded
            self._is_asked_again = True
            self._begin(self.conversation.take_back_user(), folded, n_answers=n_answers)
        else:
            self._replaced = [self.conversation.drop_reply()]
            self._send(n_answers=n_answers)
        return True

    def choose(self, at: int) -> bool:
        """Go on with another answer to the last message: ``at`` in its ``others``; False while the
        engine is busy."""
        last = self.last_message
        if self.is_busy or last is None or at >= len(last.others):
            return False
        others = (replace(last, others=()), *last.others[:at], *last.others[at + 1 :])
        self.conversation.messages[-1] = replace(
            last.others[at], others=others, sources=last.sources
        )
        self.journal.note_settled(self.conversation)
        return True

    def continue_reply(self) -> bool:
        """Go on with the last reply; False when it is complete, there is none, or the engine is not
        free."""
        if self.is_busy or self.model is None or not self.can_continue:
            return False
        begun = self.conversation.drop_reply()
        self._replaced = [begun]
        self._send(
            Continuation(said_of(begun), begun.thinking, is_loop=begun.ending is Ending.REPEATED)
        )
        return True

    @property
    def last_message(self) -> ChatMessage | None:
        """The newest message of either side."""
        messages = self.conversation.messages
        if messages:
            return messages[-1]
        return None

    @property
    def can_continue(self) -> bool:
        """Whether the last message is a reply that ended before its end."""
        last = self.last_message
        return (
            last is not None and last.role is Role.ASSISTANT and last.ending is not Ending.COMPLETE
        )

    def start_new(self, system: str | None) -> bool:
        """Forget all turns and begin with this system prompt; False while the engine is busy."""
        if self.is_busy:
            return False
        self._begin_conversation(system)
        self._send_conversation()
        return True

    def start_without(self) -> str | None:
        """Begin again because the conversation will be deleted; returns its id, or None while the
        engine is busy."""
        if self.is_busy:
            return None
        conversation_id = self.journal.id
        self.journal.let_go()
        self.start_new(self.conversation.system)
        return conversation_id

    def tune(self, parts: tuple[str, ...] = THREADS_AND_WEIGHTS) -> bool:
        """Find the best threads, or other parts of tuning; False while the engine is busy or there
        is no model."""
        if self.is_busy or self.model is None:
            return False
        self.is_tuning = self._bridge.tune(parts)
        return self.is_tuning

    def stop(self) -> None:
        """Stop the running reply, search for threads, opening of a model or reading of a
        conversation, if one runs."""
        if self.is_busy:
            self._bridge.cancel()

    # ---- what the engine reports

    def take(self, event: Event) -> TurnOutcome:
        """Keep the conversation true to what has happened; returns what came of it."""
        if isinstance(event, TextEvent):
            self.growing.take(event)
        elif isinstance(event, events.GenerationFinished):
            self._end_reply(event, self.growing)
        elif isinstance(event, events.AnswersBegun):
            self._answers = [ReplyCollector() for _ in range(event.n)]
            self._ended = {}
        elif isinstance(event, events.AnswerTold):
            self._note_told(event.at, event.event)
        elif isinstance(event, events.AnswersFinished):
            self._end_answers()
        elif isinstance(event, events.GenerationFailed) and event.broken_off is not None:
            self._end_reply(event.broken_off, self.growing)
        elif isinstance(event, (events.GenerationFailed, events.PromptStopped)):
            return TurnOutcome(is_as_before=self.leave_unanswered())
        elif isinstance(event, events.PromptRefused):
            return self._take_back()
        elif isinstance(event, events.TurnsDropped):
            self._note_dropped(event.n_turns)
        elif isinstance(event, events.ModelLoaded):
            return TurnOutcome(is_new=self._note_loaded(event))
        elif isinstance(event, events.ModelFailed):  # the next one takes over the conversation
            self.model = None
            self.is_loading = False
            self.is_rereading = False
            self.begins_new = False
        elif isinstance(event, events.ModelKept):
            self._note_model_kept(event.is_open)
        elif isinstance(event, events.ConversationReread):
            self.is_rereading = False
        elif isinstance(event, events.TuningEnded):
            self.is_tuning = False
        elif isinstance(event, events.AdaptersChanged):
            self.is_adapting = False
            if not event.trouble:
                self._note_adapters(event.adapters)
        elif isinstance(event, events.ToolsAnswered):
            self._note_results(event.results)
        elif isinstance(event, events.TitleWritten):
            self._note_title(event)
        return TurnOutcome()

    def use_adapters(self, adapters: tuple[str, ...]) -> bool:
        """Change the model by these adapters from the next message on; False while busy or without
        a model."""
        if self.is_busy or self.model is None:
            return False
        self.is_adapting = self._bridge.use_adapters(adapters)
        return self.is_adapting

    def _note_adapters(self, adapters: tuple[str, ...]) -> None:
        self.conversation.adapters = adapters
        self.journal.note_adapters(self.conversation)

    def _note_loaded(self, model: events.ModelLoaded) -> bool:
        """The model is there; returns whether a new conversation begins with it."""
        self.model = model
        self.is_loading = False
        self.journal.note_model(model.title, model_key(model.path))
        is_new = self.begins_new
        self.begins_new = False
        if is_new:
            self._begin_conversation(self.conversation.system)
        return is_new

    def _note_model_kept(self, is_open: bool) -> None:
        """The model from before stays, or is being opened again and will read the conversation."""
        self.begins_new = False
        self.is_rereading = not is_open and self.has_context
        if is_open:
            self.model = self._model_before
            self.is_loading = False

    def save_partial(self) -> None:
        """Save the running reply so far."""
        text = self.growing.text
        thought = self.growing.thought
        if not self.is_loading:
            # Of a new conversation it is known only by now.
            self._bridge.state_path = self.journal.state_path
        if self.is_answering and (text or thought):
            ids, raw = self._bridge.written()
            self.journal.flush(
                self.conversation, PartialReply(text, thought, ids, raw, self._is_edited)
            )

    @property
    def _is_edited(self) -> bool:
        """Whether the running reply goes on from what the user made of it."""
        return self._begun is not None and self._begun.edited is not None

    def _note_told(self, at: int, event: Event) -> None:
        """One of several replies has grown, or ended."""
        if isinstance(event, TextEvent):
            self._answers[at].take(event)
        elif isinstance(event, events.GenerationFinished):
            self._ended[at] = event
        elif isinstance(event, events.GenerationFailed) and event.broken_off is not None:
            self._ended[at] = event.broken_off

    def _end_answers(self) -> None:
        """The first of several replies counts as a turn; the others may take its place."""
        (first, done), *rest = sorted(self._ended.items())
        others = tuple(
            ChatMessage(
                Role.ASSISTANT,
                self._answers[at].text,
                one.ending,
                one.figures,
                self._answers[at].thinking,
                ids=one.ids,
                raw=one.raw,
            )
            for at, one in rest
        )
        self._end_reply(done, self._answers[first], others)

    def _end_reply(
        self,
        done: events.GenerationFinished,
        growing: ReplyCollector,
        others: tuple[ChatMessage, ...] = (),
    ) -> None:
        """The running reply counts as a turn."""
        self.is_answering = False
        self.is_calling = bool(done.calls)
        figures = done.figures
        if self._begun is not None and not self._is_edited:
            begun = self._replaced[0]
        else:
            begun = None
        if begun is not None and begun.figures is not None:
            figures = begun.figures.continued_by(figures)
        message = self.conversation.add_reply(growing.text, done.ending, figures, growing.thinking)
        message.others = (*others, *self._answered_before())[:MOST_OTHERS]
        message.is_edited = self._is_edited or (begun is not None and begun.is_edited)
        message.ids = done.ids
        message.raw = done.raw
        message.calls = done.calls
        message.calls_at = done.calls_at
        if self._begun is None:
            message.server_fields = done.server_fields
        else:
            message.server_fields = None
        self._replaced = []
        self._end_turn()
        self._wait_for_disk()

    def _answered_before(self) -> tuple[ChatMessage, ...]:
        """Return the answers that the running reply takes the place of, where it goes on from none
        of them."""
        if self._replaced:
            before = self._replaced[0]
        else:
            before = None
        if before is None or before.role is Role.USER:
            return ()
        if self._begun is not None:
            return before.others
        return (replace(before, others=()), *before.others)

    def _end_turn(self) -> None:
        self.joined = self._left_out = None
        self._is_asked_again = False
        self.journal.note_settled(self.conversation)

    def run_calls(self, allowed: frozenset[str]) -> None:
        """Run those calls of the last reply that the user agreed to, by their ids."""
        self._bridge.call_tools(self.conversation.messages[-1].calls, allowed)

    def _note_results(self, results: tuple[CallResult, ...]) -> None:
        """The calls have results: the model goes on from them."""
        self.is_calling = False
        calls = self.conversation.messages[-1].calls
        self.conversation.add_results(results).folded = folded(calls, results)
        self._send()

    def leave_unanswered(self) -> bool:
        """The turn ends without a reply; False if the question stays, True if what it replaced is
        back."""
        self.is_answering = self.is_calling = False
        is_restored = self._restore()
        self._end_turn()
        return is_restored

    def _note_title(self, event: events.TitleWritten) -> None:
        """Give the conversation the title, unless it has another by now."""
        if event.conversation_id == self.journal.id and self.journal.wants_title(self.conversation):
            self.journal.rename(event.title)

    def _note_dropped(self, n_turns: int) -> None:
        """The oldest turns have left the context."""
        conversation = self.conversation
        conversation.n_dropped = min(
            conversation.n_dropped + 2 * n_turns, len(conversation.messages)
        )
        self.journal.note_dropped(conversation)

    @property
    def first_in_context(self) -> ChatMessage | None:
        """The oldest message that the model sees; None where it sees none."""
        rest = self.conversation.messages[self.conversation.n_dropped :]
        if rest:
            return rest[0]
        return None

    def stop_tuning(self) -> None:
        """Stop the search for threads, if one runs."""
        if self.is_tuning:
            self._bridge.cancel()

    def _take_back(self) -> TurnOutcome:
        """The question was refused: it goes back to where it came from, as if it had not been
        asked."""
        # what stood there before stays
        if self._is_asked_again or self.conversation.messages[-1].results:
            return TurnOutcome(is_as_before=self.leave_unanswered())
        self.is_answering = False
        text = self.conversation.messages[-1].text
        if not self._restore():
            self.conversation.take_back_user()
        before = self.joined or self._left_out
        if before is not None:
            text = self._own_text
            self.conversation.messages.append(before)
            self.conversation.is_cut_off = True
        self._end_turn()
        return TurnOutcome(given_back=text)

    def _restore(self) -> bool:
        replaced = self._replaced
        self._replaced = []
        if replaced and replaced[0].role is Role.USER:
            self.conversation.take_back_user()
        self.conversation.messages += replaced
        return bool(replaced)

    def _begin(
        self, text: str, folded: str = "", asked_s: float | None = None, n_answers: int = 1
    ) -> None:
        self.joined = self.conversation.unanswered
        self._own_text = text
        if text in self.left_waiting[:1]:  # it is said at last
            del self.left_waiting[0]
        text, folded = self.conversation.with_unanswered(text, folded)
        self.conversation.add_user(clean_text(text), folded)
        self._send(asked_s=asked_s, n_answers=n_answers)
        self._save_queue()

    def _send(
        self, begun: Continuation | None = None, asked_s: float | None = None, n_answers: int = 1
    ) -> None:
        self._begun = begun
        self.growing.begin_again()
        self.journal.note_asked(self.conversation, bool(self._replaced))
        self._wait_for_disk()
        self._bridge.state_path = self.journal.state_path
        # The queue cannot be full: the engine was free.
        request = Request(
            self.conversation.said(),
            begun,
            n_answers=n_answers,
            asked_s=asked_s,
            adapters=self.conversation.adapters,
        )
        self.is_answering = self._bridge.reply(request)

    def _save_queue(self) -> None:
        """Write the queue to disk at once: a kill loses none of it."""
        self.journal.note_waiting(self.conversation, [*self.left_waiting, *self.queued_texts])

    def _begin_conversation(self, system: str | None) -> None:
        self._leave_conversation()
        self.conversation = Conversation(system or None, adapters=self.conversation.adapters)
        self.journal.begin()
        self._save_queue()
        self._bridge.state_path = None

    def _leave_conversation(self, conversation: Conversation | None = None) -> None:
        """Leave the queue to the next conversation."""
        if self._queued:
            self.journal.note_waiting(conversation or self.conversation, self.left_waiting)
        self.left_waiting = []

    def _wait_for_disk(self) -> None:
        if self._saving_patience_s:
            self.journal.settle(self._saving_patience_s, waits_for_room=False)
