"""Export of a conversation as Markdown or JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from app.conversations.conversation import ChatMessage, Conversation, Ending, Role
from app.conversations.reply_lines import sources_line, thinking_summary, whole_footer
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from engine.machine.files import safe_flags

MISSING = "(missing: it could not be read)"
_WITH_THINKING = "+thinking"
_NO_NAME = re.compile(r"\W+")
"""Characters of a title that stand in no file name."""
_MOST_NAME_CHARS = 48
"""Limit on a title in a file name, which may have 255 bytes."""
_HEADINGS = {Role.USER: "You", Role.ASSISTANT: "Model"}


def to_markdown(
    conversation: Conversation, model: str, now: datetime, with_thinking: bool = False
) -> str:
    """Return the conversation as Markdown, with front matter that names program and model.

    Args:
        model: clean name and quantisation; "" if they are not known.
        now: time of the export.
    """
    replies = [m for m in conversation.messages if m.role is Role.ASSISTANT]
    front = {
        "program": "jalopy",
        "model": model,
        "saved": now.isoformat(timespec="seconds"),
        "replies": len(replies),
        "tokens": sum(message.figures.tokens for message in replies if message.figures is not None),
    }
    # Each JSON value is a YAML value, too, and no name can break out of its line.
    lines = [
        "---",
        *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()),
        "---",
        "",
    ]
    if conversation.system:
        lines += ["## System", "", conversation.system, ""]
    for message in conversation.messages:
        lines += [f"## {_HEADINGS[message.role]}", ""]
        if with_thinking and message.thinking is not None:
            lines += [
                *(f"> {line}".rstrip() for line in message.thinking.text.strip().split("\n")),
                "",
            ]
            lines += [f"*{thinking_summary(message.thinking)}*", ""]
        lines += [f"*{MISSING}*" if message.is_missing else message.text, ""]
        if message.figures is not None or message.ending is not Ending.COMPLETE:
            footer = whole_footer(message.figures, message.ending, is_edited=message.is_edited)
            lines += [f"*{footer}*", ""]
        if message.sources:
            lines += [f"*{sources_line(message.sources)}*", ""]
    return "\n".join(lines)


def to_json(
    conversation: Conversation, model: str, now: datetime, with_thinking: bool = False
) -> str:
    """Return the conversation as JSON, with every message and its figures.

    The arguments are those of ``to_markdown``.
    """
    messages = [_message_values(message, with_thinking) for message in conversation.messages]
    values = {
        "program": "jalopy",
        "model": model,
        "saved": now.isoformat(timespec="seconds"),
        "system": conversation.system,
        "messages": messages,
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _message_values(message: ChatMessage, with_thinking: bool) -> dict[str, Any]:
    values = asdict(message)
    values |= {"role": message.role.value, "ending": message.ending.value}
    values["others"] = [
        {
            ("others" if name == "alternatives" else name): value
            for name, value in alternative.items()
        }
        for alternative in values.pop("alternatives")
    ]

    # Token ids need their model, and the folded text needs the prompt.
    removed = ["ids", "raw", "folded", "calls_at", "server_fields"]
    if not with_thinking:
        removed.append("thinking")
    for name in removed:
        del values[name]
    for name in ("calls", "results"):
        if not values[name]:
            del values[name]
    return values


def choose_path(requested: str, now: datetime, title: str = "", suffix: str = ".md") -> Path:
    """Return the path to save to: the requested file, or a new file in the requested or current
    directory, named by the conversation's title.
    """
    if requested:
        path = Path(requested).expanduser()
    else:
        path = Path.cwd()
    if not path.is_dir():
        return path
    stem = _NO_NAME.sub("-", title)[:_MOST_NAME_CHARS].strip("-_")
    named = path / f"{stem}{suffix}"
    if stem and not os.path.lexists(named):
        return named
    return path / f"{stem or 'jalopy'}-{now:%Y%m%d-%H%M%S}{suffix}"


def save_as(requested: str, conversation: Conversation, model: str, title: str = "") -> str:
    """Save a conversation as Markdown or JSON, as ``/save`` does, and return a line for the user.

    Args:
        title: title of the conversation, which names the file if no name is requested.

    Raises Refusal: the conversation is not saved.
    """
    with_thinking = requested.endswith(_WITH_THINKING)
    requested = requested.removesuffix(_WITH_THINKING).rstrip()
    if conversation.is_empty:
        raise Refusal("there is nothing to save yet")
    now = datetime.now().astimezone()
    try:
        path = choose_path(requested, now, title)
        if path.suffix.lower() == ".json":
            as_text = to_json
        else:
            as_text = to_markdown
        write_new(path, as_text(conversation, model, now, with_thinking))
    except FileExistsError:
        raise Refusal(f"not saved: {path} exists already; choose another name") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise Refusal(f"not saved: {clean_line(str(error), 200)}") from None
    has_thinking = any(message.thinking for message in conversation.messages)
    hint = f" (without the thinking; `/save PATH {_WITH_THINKING}` includes it)"
    return f"saved: {path.absolute()}{hint if has_thinking and not with_thinking else ''}"


def write_new(path: Path, text: str) -> None:
    """Create a file that only its owner can read.

    Raises FileExistsError; OSError: no part of the file is left.
    """
    handle = os.open(path, safe_flags(os.O_WRONLY | os.O_CREAT | os.O_EXCL), 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
