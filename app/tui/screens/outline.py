"""The outline: the questions of the open conversation; Enter goes to one."""

from __future__ import annotations

from app.conversations.conversation import ChatMessage, Role
from app.text import figures
from app.text.clean_text import clean_line, screen_text
from app.text.glyphs import cut
from app.text.record import record
from app.tui.actions import CHAT
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import Line, Span, SpanRole
from app.tui.screens.list_screen import ListScreen
from app.tui.widgets.conversation_rows import said

_MOST_CHARS = 4000
"""Limit on the text of a question or an answer that is looked at."""
_DETAIL_ROWS = 6


@record
class Question:
    """A message of the user, and the reply to it."""

    index: int
    """Index of the message in the conversation."""
    number: int
    """Number among the messages of the user, from 1."""
    text: str
    """Beginning of the message, with large pastes folded."""
    reply: str
    """Beginning of the reply; empty if there is none."""


def questions_of(messages: list[ChatMessage]) -> tuple[Question, ...]:
    """Return the messages that the user wrote, oldest first; results of tools are left out."""
    questions: list[Question] = []
    for index, message in enumerate(messages):
        if message.role is not Role.USER or message.results:
            continue
        following = messages[index + 1 : index + 2]
        reply = following[0].text[:_MOST_CHARS] if following else ""
        text = (message.folded or message.text)[:_MOST_CHARS]
        questions.append(Question(index, len(questions) + 1, text, reply))
    return tuple(questions)


class OutlineScreen(ListScreen[Question]):
    """List of the questions of the open conversation."""

    TITLE = "Outline"
    SCOPE = "outline"
    BINDINGS = bindings(SCOPE)
    MOST_DETAIL_COLUMNS = 100

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        self._chat = chat
        self._questions: tuple[Question, ...] = ()

    def start_search(self) -> None:
        """List the questions of the conversation that is open now."""
        self._questions = questions_of(self._chat.core.chat_session.conversation.messages)

    def items(self) -> tuple[Question, ...]:
        """Return the questions that have all words of the filter, in them or their answers."""
        words = self.filter_text.casefold().split()
        return tuple(
            question
            for question in self._questions
            if all(word in f"{question.text}\n{question.reply}".casefold() for word in words)
        )

    def is_start(self, item: Question) -> bool:
        """Whether the cursor begins on this question: the last one."""
        return item is self._questions[-1]

    def heading_line(self, columns: int) -> str:
        """Return the names of the columns."""
        return "   #  question"

    def row_line(self, item: Question, columns: int) -> Line:
        """Return the number and the first words of a question."""
        text = clean_line(item.text, columns)
        return (Span(f"{item.number:>4}  {cut(text, max(1, columns - 6))}"),)

    def details(self, item: Question, columns: int) -> tuple[str, list[Line]]:
        """Return the question, and the beginning of its answer."""
        lines = said("You", screen_text(item.text), columns, SpanRole.READING)[:_DETAIL_ROWS]
        lines += said("Model", screen_text(item.reply), columns, SpanRole.WRITING)[:_DETAIL_ROWS]
        return f"Question {item.number}", lines

    def state_line(self) -> str:
        """Return the number of questions."""
        return figures.counted(len(self._questions), "question")

    def empty_text(self) -> str:
        """Return that there are no questions yet."""
        return "" if self._questions else "No questions yet: each of your messages is listed here."

    def foot_line(self) -> str:
        """Return the result of the last key, or that nothing matches."""
        if self._questions and not self.items():
            return "No question has all these words"
        return self.message

    def key_words(self, item: Question | None) -> dict[str, str]:
        """Return the effects of keys, by the names of their actions."""
        if item is None:
            return {"leave": "back"}
        return {"open": "go to it", "leave": "back"}

    def action_open(self) -> None:
        """Go to the highlighted question in the chat."""
        item = self.highlighted()
        if item is not None:
            self.app.switch_mode(CHAT)
            self._chat.call_later(self._chat.conversations.focus_message, item.index)
