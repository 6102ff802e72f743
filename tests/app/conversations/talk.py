"""A short conversation as the chat would save it, for tests that damage files on disk."""

from __future__ import annotations

from pathlib import Path

from app.conversations.conversation import ChatMessage, Conversation, Ending, ReplyFigures
from app.conversations.journal import Journal, PartialReply
from app.conversations.store import Store
from app.reply.thinking import Thinking

FIGURES = ReplyFigures(3, 0.5, 2.0, 5, 0)
PATIENCE_S = 60.0


def journal(root: Path) -> Journal:
    """Return a journal that saves in a directory."""
    live_journal = Journal(Store(root), lambda: "2026-11-21T10:00:00+00:00")
    live_journal.set_model("tiny Q4_K_M", "/models/tiny.gguf")
    return live_journal


def ask(live_journal: Journal, conversation: Conversation, text: str) -> None:
    """Add a message of the user and save it."""
    conversation.add_user(text)
    live_journal.save_question(conversation, is_replacing=False)


def answer(
    live_journal: Journal, conversation: Conversation, text: str, ending: Ending = Ending.COMPLETE
) -> ChatMessage:
    """Add a reply of the model, saved in two pieces and at its end."""
    half = len(text) // 2
    live_journal.save_partial(conversation, PartialReply(text[:half], "hm", (7,), text[:half]))
    message = conversation.add_reply(text, ending, FIGURES, Thinking("hm", 1, 0.5, True))
    message.ids = (7, 8, 9)
    message.raw = f"<think>hm</think>{text}"
    live_journal.save_turn_end(conversation)
    return message


def saved_talk(root: Path, turns: int = 3) -> list[str]:
    """Save a conversation of a number of turns and return its texts."""
    live_journal = journal(root)
    conversation = Conversation("Be brief.")
    for n in range(turns):
        ask(live_journal, conversation, f"question {n} \N{SNOWMAN}")
        answer(live_journal, conversation, f"answer {n}, at some length")
    assert live_journal.close(PATIENCE_S) == ""
    return [message.text for message in conversation.messages]


def texts_in(root: Path, conversation_id: str = "000001") -> list[str]:
    """Return the texts that a restarted program reads."""
    return [message.text for message in Store(root).read(conversation_id).conversation.messages]
