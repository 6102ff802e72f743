"""Conversations in other programs' files.

Exports with changed bytes and values, and what must hold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from app.conversations.branches import other_branches
from app.conversations.conversation import Role
from app.conversations.import_file import ForeignConversation, read_conversations
from app.program.refusals import Refusal
from app.text.clean_text import clean_text
from tests.programs.fuzz.mutation import edge, mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch, require_clean_line

_CPU_S = 10.0
_MEMORY_BYTES = 256 << 20
_TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a", "thinking": "hm"},
]
_TREE: dict[str, Any] = {
    "r": {"parent": None, "message": None},
    "u": {
        "parent": "r",
        "message": {
            "author": {"role": "user"},
            "content": {"content_type": "text", "parts": ["q"]},
        },
    },
    "a": {
        "parent": "u",
        "message": {
            "author": {"role": "assistant"},
            "metadata": {},
            "content": {"content_type": "text", "parts": ["a", {"text": "b"}]},
        },
    },
}
_NODES = {"a": {"parentId": None, **_TURN[0]}, "b": {"parentId": "a", **_TURN[1]}}
_STEPS = [
    {
        "type": "contentBlock",
        "style": {"type": "thinking"},
        "content": [{"type": "text", "text": "a"}],
    }
]
_EXPORTS: tuple[Any, ...] = (
    _TURN,
    {"title": "T", "messages": _TURN},
    [{"title": "T", "create_time": 1.7e9, "mapping": _TREE, "current_node": "a"}],
    {"conv": {"name": "T", "currNode": "2", "lastModified": 1.7e12},
     "messages": [{"id": "1", "parent": None, **_TURN[0]}, {"id": "2", "parent": "1", **_TURN[1]}]},
    [{"name": "T", "created_at": "2026-05-01T10:00:00Z", "chat_messages": [
        {"uuid": "1", "parent_message_uuid": "0", "sender": "human", "text": "q",
         "attachments": [{"file_name": "f", "extracted_content": "x"}]},
        {"uuid": "2", "parent_message_uuid": "1", "sender": "assistant",
         "content": [{"type": "text", "text": "a"}]}]}],
    [{"chat": {"title": "T", "history": {"currentId": "b", "messages": _NODES},
               "messages": _TURN}}],
    {"name": "T", "createdAt": 1.7e12, "messages": [
        {"versions": [{"role": "user", "content": [{"type": "text", "text": "q"}]}],
         "currentlySelected": 0},
        {"versions": [{"role": "assistant", "steps": _STEPS}], "currentlySelected": 0}]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    {"program": "jalopy", "system": "s", "saved": "2026-05-01", "messages": [
        {"role": "user", "text": "q", "n_older": 1, "others": [
            {"role": "user", "text": "p", "later": [
                {"role": "assistant", "text": "a", "ending": "complete", "others": [
                    {"role": "assistant", "text": "b", "ending": "stopped"}]}]}]},
        {"role": "assistant", "text": "a", "ending": "complete", "figures": None}]},
)  # fmt: skip
_DEEP: Any = "x"
for _ in range(60):
    _DEEP = {"content": [_DEEP], "parent": "a"}
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0.5, 1e308, "", "a", "\x1b]0;x\x07\u202e\ud800", "x" * 3000, [], {}, [[]],
    _DEEP, "user",
    "assistant",
)  # fmt: skip


def seeds() -> list[bytes]:
    """Sound exports of every program, whole and as lines."""
    exports = [json.dumps(export).encode() for export in _EXPORTS]
    return [
        *exports,
        b"\n".join(exports[:2]),
        b"\n".join(json.dumps(message).encode() for message in _TURN),
    ]


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Change bytes, or values and their places."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, inputs)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data, inputs)
    for _ in range(rng.choice((1, 1, 2, 3))):
        values = _changed(rng, values, 12)
    return json.dumps(values).encode()


def _changed(rng: Random, value: Any, depth: int) -> Any:
    """Return a value with another in one place of it."""
    if depth == 0 or not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return rng.choice((*_VALUES, edge(rng), value))
    if isinstance(value, list):
        index = rng.randrange(len(value))
        return [
            *value[:index],
            *(rng.choice((1, 1, 1, 0, 3)) * [_changed(rng, value[index], depth - 1)]),
            *value[index + 1 :],
        ]
    name = rng.choice(list(value))
    changed = {**value, name: _changed(rng, value[name], depth - 1)}
    if rng.random() < 0.1:
        del changed[name]
    return changed


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Read a file; its conversations are sound, or one clean line says why there are none."""
    try:
        with watch.bounded("an import", _CPU_S, _MEMORY_BYTES):
            conversations = list(read_conversations(data))
    except Refusal as refusal:
        return require_clean_line(str(refusal))
    for conversation in conversations:
        require_sound(conversation)
    n_messages = sum(len(imported.conversation.messages) for imported in conversations)
    return (
        f"{min(len(conversations), 2)} with {min(n_messages, 3)}, {len(conversations[0].left_out)} "
        "kinds left out"
    )


def require_sound(foreign: ForeignConversation) -> None:
    """Check that sides take turns, texts are clean, and what is left out is counted."""
    messages = foreign.conversation.messages
    if [message.role for message in messages] != [
        (Role.USER, Role.ASSISTANT)[n % 2] for n in range(len(messages))
    ]:
        raise Fault("two messages of one side follow each other")
    for branch in other_branches(foreign.conversation.messages):
        if branch.messages[0].role is not (Role.USER, Role.ASSISTANT)[branch.index % 2]:
            raise Fault("a branch begins with a message of the other side")
        messages = [*messages, *branch.messages]
    thoughts = [message.thinking.text for message in messages if message.thinking is not None]
    for text in (
        foreign.conversation.system or "",
        *(message.text for message in messages),
        *thoughts,
    ):
        if clean_text(text) != text:
            raise Fault("a text has control characters")
    if not foreign.title.isprintable() or not foreign.began.isascii():
        raise Fault("a title or a time is not clean")
    if any(n <= 0 for n in foreign.left_out.values()):
        raise Fault("something is left out less than once")


TARGET = Target(
    seeds,
    mutate,
    run,
    source=(
        "app/conversations/import_branches.py",
        "app/conversations/import_file.py",
        "app/conversations/import_formats.py",
    ),
)
