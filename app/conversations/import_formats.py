"""Formats of other programs' conversations.

Each function reads the JSON of one conversation. Values are checked before use, and unsound ones
are
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import datetime, timezone
from typing import Any

from app.text.record import record

_LATEST_S = 1 << 33
"""Seconds until the year 2242."""
_LARGEST_S = 1e11
_LARGEST_MS = 1e14
"""Times above the first limit are in milliseconds, those above the second in microseconds."""
_REASONING = re.compile(r'<details type="reasoning"[^>]*>(.*?)</details>', re.DOTALL)
_SUMMARY = re.compile(r"<summary>.*?</summary>", re.DOTALL)
_LISTS = ("conversations", "chats", "threads", "data", "items")
"""Names of fields with a list of conversations."""
_THOUGHTS = ("thinking", "reasoning_content", "reasoningContent", "reasoning")
_TEXTS = ("content", "text", "value", "mes")
_ROLES = ("role", "sender", "from", "author")

Values = Mapping[str, Any]


@record
class ForeignMessage:
    """A message as its file has it."""

    role: str
    """Name of the speaker in the file."""
    parts: Sequence[Any] = ()
    """Texts of the message; other values stand for pictures and the like."""
    thought: Any = None
    values: Values | None = None
    """All fields of a message of this program's own export; None for other programs."""


@record
class RawConversation:
    """A conversation as its file has it."""

    messages: Sequence[ForeignMessage]
    title: Any = None
    began: str = ""
    """Wall time as ISO text; "" if the file has none."""
    n_other: int = 0
    """Number of messages in other branches."""
    system: Any = None
    model: Any = None
    """Name of the model that wrote the replies; None if the file has none."""
    marks: Any = None
    """Values with pin and tags; None for other programs."""
    summaries: Any = None


Read = Callable[[Any], RawConversation]


def reader_of(values: Any) -> Read | None:
    """Return the function that reads a conversation; None if the format is unknown."""
    if isinstance(values, list):
        if are_messages(values):
            return _message_list
        return None
    if not isinstance(values, dict):
        return None
    chat = values.get("chat")
    if isinstance(values.get("mapping"), dict):
        return _chatgpt
    if isinstance(values.get("chat_messages"), list):
        return _claude
    if isinstance(chat, dict) and (
        isinstance(chat.get("history"), dict) or isinstance(chat.get("messages"), list)
    ):
        return _open_webui
    messages = values.get("messages")
    if not isinstance(messages, list):
        if are_messages(values.get("conversations")):
            return _sharegpt
        return None
    if isinstance(values.get("conv"), dict):
        return _llama_server
    if any(
        isinstance(message, dict) and isinstance(message.get("versions"), list)
        for message in messages
    ):
        return _lm_studio
    if values.get("program") == "jalopy":
        return _own
    return _message_list


def are_messages(values: Any) -> bool:
    """Whether a value is a list of messages, rather than of conversations."""
    return isinstance(values, list) and any(_is_message(value) for value in values)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or "messages" in value or "mapping" in value:
        return False
    return (
        "role" in value
        or ("from" in value and "value" in value)
        or ("mes" in value and "is_user" in value)
    )


def conversations_in(values: Any) -> list[Any]:
    """Return the conversations of a file.

    The file has a list of them, an object with such a list, or a single one.
    """
    if _is_message(values):
        return [[values]]
    if isinstance(values, dict) and reader_of(values) is None:
        for name in _LISTS:
            if isinstance(values.get(name), list) and any(map(reader_of, values[name])):
                return list(values[name])
    if isinstance(values, list) and not are_messages(values):
        return values
    return [values]


# ---- the formats


def _own(values: Values) -> RawConversation:
    messages = []
    for value in values["messages"]:
        if not isinstance(value, dict):
            value = {}
        messages.append(
            ForeignMessage(text_of(value.get("role")), [value.get("text")], values=value)
        )
    return RawConversation(
        messages,
        values.get("title"),
        moment(values.get("saved")),
        system=values.get("system"),
        model=values.get("model"),
        marks=values,
        summaries=values.get("summaries"),
    )


def _message_list(values: Any) -> RawConversation:
    if isinstance(values, dict):
        about = values
    else:
        about = {}
    messages = about.get("messages", values)
    title = about.get("title") or about.get("name")
    return RawConversation([_message(value) for value in messages], title, _began(about))


def _sharegpt(values: Values) -> RawConversation:
    messages = [_message(value) for value in values["conversations"]]
    return RawConversation(
        messages, values.get("title"), _began(values), system=values.get("system")
    )


def _llama_server(values: Values) -> RawConversation:
    conv = values["conv"]
    by_id = {
        value["id"]: value
        for value in values["messages"]
        if isinstance(value, dict) and _is_name(value.get("id"))
    }
    tree = _Tree(by_id, "parent")
    branch = tree.branch(conv.get("currNode"))
    if len(branch) <= 1:
        branch = [value for value in values["messages"] if isinstance(value, dict)]
    messages = [_message(value) for value in branch if value.get("type") != "root"]
    n_roots = sum(value.get("type") == "root" for value in by_id.values() if value not in branch)
    n_other = max(0, len(by_id) - len(branch) - n_roots)
    return RawConversation(messages, conv.get("name"), moment(conv.get("lastModified")), n_other)


def _chatgpt(values: Values) -> RawConversation:
    nodes = {name: value for name, value in values["mapping"].items() if isinstance(value, dict)}
    branch = _Tree(nodes, "parent").branch(values.get("current_node"))
    messages = [
        _chatgpt_message(node["message"])
        for node in branch
        if isinstance(node.get("message"), dict)
    ]
    n_all = sum(isinstance(node.get("message"), dict) for node in nodes.values())
    visible = [message for message in messages if message.role != "system" or any(message.parts)]
    return RawConversation(
        visible, values.get("title"), moment(values.get("create_time")), n_all - len(messages)
    )


def _chatgpt_message(message: Values) -> ForeignMessage:
    author = message.get("author")
    content = message.get("content")
    if not isinstance(content, dict):
        content = {}
    metadata = message.get("metadata")
    if isinstance(author, dict):
        role = text_of(author.get("role"))
    else:
        role = ""
    contents = content.get("parts")
    if not isinstance(contents, list):
        contents = [content.get("text")]
    is_hidden = (
        isinstance(metadata, dict) and metadata.get("is_visually_hidden_from_conversation") is True
    )
    is_call = message.get("recipient") not in (None, "all")
    is_said = (
        content.get("content_type") in ("text", "multimodal_text", "code")
        and not is_hidden
        and not is_call
    )
    if role == "system" and not is_said:
        return ForeignMessage("system")
    return ForeignMessage(
        role if is_said else "tool", [_transcript(content_part) for content_part in contents]
    )


def _transcript(content_part: Any) -> Any:
    """Return the text of speech, or another value unchanged."""
    if isinstance(content_part, dict) and content_part.get("content_type") == "audio_transcription":
        return content_part.get("text")
    return content_part


def _claude(values: Values) -> RawConversation:
    listed: list[Values] = [value for value in values["chat_messages"] if isinstance(value, dict)]
    by_id = {value["uuid"]: value for value in listed if _is_name(value.get("uuid"))}
    branch = listed
    if any(
        value.get("parent_message_uuid") in by_id
        for value in listed
        if _is_name(value.get("parent_message_uuid"))
    ):
        branch = _Tree(by_id, "parent_message_uuid").branch(values.get("current_leaf_message_uuid"))
    messages = [_claude_message(value) for value in branch]
    return RawConversation(
        messages, values.get("name"), moment(values.get("created_at")), len(listed) - len(branch)
    )


def _claude_message(value: Values) -> ForeignMessage:
    plain = _message(value)
    if not any(isinstance(text, str) and text for text in plain.parts):
        plain = ForeignMessage(plain.role, [value.get("text")], plain.thought)
    attachments = value.get("attachments")
    files = value.get("files")
    if isinstance(attachments, list):
        texts = [_attachment(file) for file in attachments]
    else:
        texts = []
    if isinstance(files, list):
        pictures = [None] * len(files)
    else:
        pictures = []
    return ForeignMessage(plain.role, [*plain.parts, *texts, *pictures], plain.thought)


def _attachment(file: Any) -> Any:
    """Return the text of an attachment with its name; None if it has no text."""
    if isinstance(file, dict):
        text = file.get("extracted_content")
    else:
        text = None
    if isinstance(text, str) and text:
        return f"{text_of(file.get('file_name'))}:\n{text}"
    return None


def _open_webui(values: Values) -> RawConversation:
    chat = values["chat"]
    history = chat.get("history")
    if not isinstance(history, dict):
        history = {}
    nodes = history.get("messages")
    if isinstance(nodes, dict):
        nodes = {name: node for name, node in nodes.items() if isinstance(node, dict)}
    else:
        nodes = {}
    branch = _Tree(nodes, "parentId").branch(history.get("currentId"))
    listed = chat.get("messages")
    if not branch and isinstance(listed, list):
        branch = [value for value in listed if isinstance(value, dict)]
    messages = [_without_reasoning(_message(value)) for value in branch]
    began = moment(values.get("created_at")) or moment(chat.get("timestamp"))
    title = chat.get("title") or values.get("title")
    return RawConversation(
        messages, title, began, max(0, len(nodes) - len(branch)), chat.get("system")
    )


def _without_reasoning(message: ForeignMessage) -> ForeignMessage:
    """Return the message with its reasoning separated from its text."""
    texts = list(message.parts)
    thought = message.thought
    for index, text in enumerate(texts):
        if isinstance(text, str) and (match := _REASONING.search(text)) is not None:
            thought = _SUMMARY.sub("", match[1]).strip()
            texts[index] = _REASONING.sub("", text).strip()
    return ForeignMessage(message.role, texts, thought)


def _lm_studio(values: Values) -> RawConversation:
    messages = [_lm_studio_message(value) for value in values["messages"]]
    return RawConversation(
        messages,
        values.get("name"),
        moment(values.get("createdAt")),
        system=values.get("systemPrompt"),
    )


def _lm_studio_message(value: Any) -> ForeignMessage:
    if isinstance(value, dict):
        versions = value.get("versions")
    else:
        versions = None
    if isinstance(versions, list):
        versions = [version for version in versions if isinstance(version, dict)]
    else:
        versions = []
    if isinstance(value, dict):
        selected = value.get("currentlySelected")
    else:
        selected = 0
    if not versions:
        return ForeignMessage("")
    if type(selected) is int and 0 <= selected < len(versions):
        version = versions[selected]
    else:
        version = versions[-1]
    steps = version.get("steps")
    if not isinstance(steps, list):
        return _message(version)
    texts_: list[Any] = []
    thoughts: list[str] = []
    for step in steps:
        if isinstance(step, dict):
            style = step.get("style")
        else:
            style = None
        if not isinstance(step, dict) or step.get("type") != "contentBlock":
            continue
        texts = _parts_of(step.get("content"))
        if isinstance(style, dict) and style.get("type") == "thinking":
            thoughts += [text for text in texts if isinstance(text, str)]
        else:
            texts_ += texts
    return ForeignMessage(text_of(version.get("role")), texts_, "\n\n".join(thoughts) or None)


# ---- parts of formats


def _message(value: Any) -> ForeignMessage:
    """Return a message of a list, whose content is a text or a list of parts."""
    if not isinstance(value, dict):
        value = {}
    content = next((value[name] for name in _TEXTS if value.get(name) is not None), None)
    images = value.get("images")
    if isinstance(images, list):
        n_pictures = len(images)
    else:
        n_pictures = 0
    thought = next((value[name] for name in _THOUGHTS if value.get(name)), None)
    thought = thought or _thought_of(content)
    return ForeignMessage(_role_of(value), [*_parts_of(content), *[None] * n_pictures], thought)


def _role_of(value: Values) -> str:
    for name in ("is_user", "isCreatedByUser"):
        if isinstance(value.get(name), bool) and "role" not in value:
            if value[name]:
                return "user"
            return "assistant"
    role = next((value[name] for name in _ROLES if value.get(name)), "")
    if isinstance(role, dict):
        role = role.get("role")
    if role == "gpt":
        return "assistant"
    return text_of(role)


def _parts_of(content: Any) -> list[Any]:
    """Return the texts of a content without its thinking; other values stand for pictures and the
    like.
    """
    if isinstance(content, list):
        values = content
    else:
        values = [content]
    return [
        value.get("text", value) if isinstance(value, dict) else value
        for value in values
        if not _is_kind(value, "thinking")
    ]


def _thought_of(content: Any) -> str | None:
    """Return the thinking in a content; None if there is none."""
    if isinstance(content, list):
        values = content
    else:
        values = []
    thoughts = [text_of(value.get("thinking")) for value in values if _is_kind(value, "thinking")]
    return "\n\n".join(filter(None, thoughts)) or None


def _is_kind(value: Any, type_name: str) -> bool:
    return isinstance(value, dict) and value.get("type") == type_name


@record
class _Tree:
    """Messages by id, each with the id of its predecessor."""

    nodes: Mapping[str, Values]
    parent: str
    """Name of the field with the predecessor's id."""
    depths: dict[str, int] = field(default_factory=dict)

    def branch(self, last: Any) -> list[Values]:
        """Return the messages up to the last one.

        If the last one is not known, return the longest branch.
        """
        if not (_is_name(last) and last in self.nodes):
            last = max(self.nodes, key=self._depth, default=None)
        path = self._path(last)
        return [self.nodes[name] for name in reversed(path)]

    def _path(self, last: Any) -> list[str]:
        """Return the ids from the last message to the first; empty if they form a circle."""
        path: list[str] = []
        seen: set[str] = set()
        while _is_name(last) and last in self.nodes:
            if last in seen:
                return []
            seen.add(last)
            path.append(last)
            last = self.nodes[last].get(self.parent)
        return path

    def _depth(self, name: str) -> int:
        """Return the number of messages that lead to one.

        Results are saved, so all take one pass.
        """
        path: list[str] = []
        seen: set[str] = set()
        node_id: Any = name
        while (
            _is_name(node_id)
            and node_id in self.nodes
            and node_id not in self.depths
            and node_id not in seen
        ):
            seen.add(node_id)
            path.append(node_id)
            node_id = self.nodes[node_id].get(self.parent)
        depth = 0
        if _is_name(node_id):
            if node_id in seen:
                depth = 0
            else:
                depth = self.depths.get(node_id, 0)
        for node in reversed(path):
            depth += 1
            self.depths[node] = depth
        return self.depths[name]


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def text_of(value: Any) -> str:
    """Return a text; "" for another value."""
    if isinstance(value, str):
        return value
    return ""


def _began(about: Values) -> str:
    names = ("create_time", "created_at", "createdAt", "created", "timestamp")
    return next(filter(None, (moment(about.get(name)) for name in names)), "")


def moment(value: Any) -> str:
    """Return a time as ISO text; "" if it cannot be read.

    The value is ISO text, or seconds, milliseconds or microseconds since 1970.
    """
    if isinstance(value, str):
        with suppress(ValueError, OverflowError):
            value = datetime.fromisoformat(value.strip()[:40].replace("Z", "+00:00")).timestamp()
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value[:40])
    if type(value) not in (int, float) or not 0 < value < _LATEST_S * 1_000_000:
        return ""
    seconds = value / (1 if value < _LARGEST_S else 1000 if value < _LARGEST_MS else 1_000_000)
    if seconds >= _LATEST_S:
        return ""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().isoformat(timespec="seconds")


def lines_as_values(lines: Iterable[Any]) -> Any:
    """Return the content of a JSON lines file: messages of one conversation, or conversations."""
    values = [value for value in lines if isinstance(value, (dict, list))]
    if are_messages(values):
        return [value for value in values if _is_message(value)]
    return values
