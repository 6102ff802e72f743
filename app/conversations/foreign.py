"""Conversations in other programs' files, as conversations of ours. Hostile until checked; what is left out is counted.

Known are our own JSON, ChatGPT's ``conversations.json``, what llama-server's web page exports, and lists of messages
with ``role`` and ``content``, as Ollama's API and many programs have them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from app.conversations.conversation import ChatMessage, Conversation, Ending, Role
from app.conversations.message_row import UnsoundError, fits, reply_of
from app.conversations.store import MOST_MESSAGES, MOST_TITLE_CHARS
from app.conversations.thinking import Thinking
from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text
from app.text.record import record

MOST_CONVERSATIONS = 10_000
_LATEST_S = 1 << 33
"""The year 2242."""
_KNOWN = "jalopy's JSON, ChatGPT's conversations.json, llama-server's export, or a list of messages"

Values = Mapping[str, Any]


@record
class Foreign:
    """One conversation of a file."""

    title: str
    conversation: Conversation
    began: str
    """Wall time, ISO; "" where the file does not say."""
    left_out: Mapping[str, int]
    """How often what could not be taken over, by what it was."""


@record
class _Said:
    """A message as its file has it: ``texts`` are its parts, other parts are left out."""

    role: str
    texts: Sequence[Any]
    thought: Any = None
    values: Values | None = None
    """Of our own export: the whole message."""


def foreign_conversations(raw: bytes) -> Iterator[Foreign]:
    """Yield the conversations of a file. Raises Refusal, which names no file: it is unknown, or has too many."""
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refusal(f"is no sound JSON (known are {_KNOWN})") from None
    found = values if isinstance(values, list) and not _are_messages(values) else [values]
    if len(found) > MOST_CONVERSATIONS:
        raise Refusal(f"has more than {MOST_CONVERSATIONS:,} conversations (split it)")
    if not any(_kind_of(one) for one in found):
        raise Refusal(f"holds no conversation that is known here (known are {_KNOWN})")
    for one in found:
        read = _kind_of(one)
        yield read(one) if read is not None else Foreign("", Conversation(), "", {"entry that is no conversation": 1})


def _kind_of(values: Any) -> Any:
    """Return the function that reads a conversation; None for what is none."""
    if isinstance(values, list):
        return _message_list if _are_messages(values) else None
    if not isinstance(values, dict):
        return None
    if isinstance(values.get("mapping"), dict):
        return _chatgpt
    if isinstance(values.get("conv"), dict) and isinstance(values.get("messages"), list):
        return _llama_server
    if isinstance(values.get("messages"), list):
        return _own if values.get("program") == "jalopy" else _message_list
    return None


def _are_messages(values: Any) -> bool:
    return isinstance(values, list) and any(isinstance(one, dict) and "role" in one for one in values)


# ---- the files


def _own(values: Values) -> Foreign:
    said = [_Said("system", [values["system"]])] if values.get("system") else []
    for one in values["messages"]:
        one = one if isinstance(one, dict) else {}
        said.append(_Said(_text(one.get("role")), [one.get("text")], values=one))
    return _taken("", said, _text(values.get("saved")))


def _message_list(values: Any) -> Foreign:
    about = values if isinstance(values, dict) else {}
    messages = about.get("messages", values)
    said = [_said_of(one) for one in messages]
    return _taken(about.get("title") or about.get("name"), said, "")


def _said_of(one: Any) -> _Said:
    """A message of a list: its content is a text, or a list of parts."""
    one = one if isinstance(one, dict) else {}
    content = one.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text", part) if isinstance(part, dict) else part for part in parts]
    n_pictures = len(one["images"]) if isinstance(one.get("images"), list) else 0
    thought = next((one[name] for name in ("thinking", "reasoning_content", "reasoningContent") if one.get(name)), None)
    return _Said(_text(one.get("role")), [*texts, *[None] * n_pictures], thought)


def _llama_server(values: Values) -> Foreign:
    conv = values["conv"]
    by_id = {one["id"]: one for one in values["messages"] if isinstance(one, dict) and isinstance(one.get("id"), str)}
    branch = _branch(by_id, conv.get("currNode"))
    if not branch:
        branch = [one for one in values["messages"] if isinstance(one, dict)]
    in_branch = set(map(id, branch))
    others = [one for one in by_id.values() if id(one) not in in_branch and one.get("type") != "root"]
    said = [_said_of(one) for one in branch if one.get("type") != "root"]
    began_s = conv.get("lastModified")
    began = _moment(began_s / 1000) if isinstance(began_s, (int, float)) else ""
    return _taken(conv.get("name"), said, began, len(others))


def _chatgpt(values: Values) -> Foreign:
    nodes = {name: one for name, one in values["mapping"].items() if isinstance(one, dict)}
    branch = _branch(nodes, values.get("current_node"))
    said = []
    for node in branch:
        message = node.get("message")
        if not isinstance(message, dict):
            continue
        author, content = message.get("author"), message.get("content")
        role = _text(author.get("role")) if isinstance(author, dict) else ""
        content = content if isinstance(content, dict) else {}
        listed = content.get("parts")
        parts = listed if isinstance(listed, list) else [content.get("text")]
        is_said = content.get("content_type") in ("text", "multimodal_text", "code")
        if role == "system" and not any(parts):
            continue
        said.append(_Said(role if is_said else "tool", parts))
    n_other = sum(isinstance(one.get("message"), dict) for one in nodes.values()) - sum(
        isinstance(one.get("message"), dict) for one in branch
    )
    return _taken(values.get("title"), said, _moment(values.get("create_time")), n_other)


def _branch(nodes: Mapping[str, Values], last: Any) -> list[Values]:
    """Return the messages from the first to the last one; [] where they lead in a circle or nowhere."""
    branch: list[Values] = []
    seen: set[str] = set()
    while isinstance(last, str) and last in nodes:
        if last in seen:
            return []
        seen.add(last)
        branch.append(nodes[last])
        last = nodes[last].get("parent")
    return branch[::-1]


# ---- to a conversation


@dataclass
class _Turn:
    """Messages of one side that follow each other."""

    first: _Said
    is_question: bool
    texts: list[str]


def _taken(title: Any, said: Sequence[_Said], began: str, n_other: int = 0) -> Foreign:
    """Make a conversation of what was said: questions and answers in turn."""
    left_out = Counter[str]()
    left_out["message of another branch"] = max(0, n_other)
    system: str | None = None
    turns: list[_Turn] = []
    for one in said:
        text = _joined(one, left_out)
        role = one.role.lower()
        is_question = role in ("user", "human")
        is_answer = role in ("assistant", "model", "bot")
        if role in ("system", "developer") and text and system is None and not turns:
            system = text
        elif is_question or (is_answer and turns):
            if turns and turns[-1].is_question == is_question:
                turns[-1].texts.append(text)
            else:
                turns.append(_Turn(one, is_question, [text]))
        elif text or role not in ("system", "developer"):
            left_out["message that is neither question nor answer"] += 1
    beyond = turns[MOST_MESSAGES:]
    left_out[f"message beyond the first {MOST_MESSAGES:,}"] = sum(len(turn.texts) for turn in beyond)
    conversation = Conversation(system)
    for turn in turns[:MOST_MESSAGES]:
        _add_turn(conversation, turn, left_out)
    return Foreign(
        clean_line(" ".join(_text(title).split()), MOST_TITLE_CHARS),
        conversation,
        began,
        {what: n for what, n in left_out.items() if n},
    )


def _joined(one: _Said, left_out: Counter[str]) -> str:
    texts = [clean_text(part) for part in one.texts if isinstance(part, str)]
    left_out["part that is no text"] += len(one.texts) - len(texts)
    text = "\n\n".join(filter(None, texts))
    if fits(text):
        return text
    left_out[_TOO_LONG] += 1
    return ""


_TOO_LONG = "text that is too long to be saved"


def _add_turn(conversation: Conversation, turn: _Turn, left_out: Counter[str]) -> None:
    text = "\n\n".join(filter(None, turn.texts))
    if len(turn.texts) > 1 and not fits(text):
        left_out[_TOO_LONG] += len(turn.texts)
        text = ""
    if turn.is_question:
        conversation.add_user(text)
    else:
        conversation.messages.append(_reply(turn.first, text, left_out))


def _reply(one: _Said, text: str, left_out: Counter[str]) -> ChatMessage:
    reply = ChatMessage(Role.ASSISTANT, text, Ending.COMPLETE)
    if one.values is not None:
        try:
            reply = reply_of(
                {**one.values, "ids": None, "raw": None, "calls": [], "edited": one.values.get("is_edited")}
            )
            reply.text = text
            reply.raw = ""
        except UnsoundError:
            left_out["reply's figures"] += 1
    elif isinstance(one.thought, str) and fits(one.thought):
        reply.thinking = Thinking(clean_text(one.thought), is_closed=True)
    return reply


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _moment(seconds: Any) -> str:
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or not 0 < seconds < _LATEST_S:
        return ""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().isoformat(timespec="seconds")
