"""Export of a conversation as Markdown or JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from app.conversations.branches import other_branches
from app.conversations.conversation import Branch, ChatMessage, Conversation, Ending, Role
from app.conversations.mark_rows import Marks
from app.conversations.reply_lines import sources_line, thinking_summary, whole_footer
from app.documents.pictures import REFERENCE_START, with_names
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from engine.machine.files import safe_flags

MISSING = "(missing: it could not be read)"
_WITH_THINKING = "+thinking"
_WITH_BRANCHES = "+branches"
_NO_NAME = re.compile(r"\W+")
"""Characters of a title that stand in no file name."""
_MOST_NAME_CHARS = 48
"""Limit on a title in a file name, which may have 255 bytes."""
_HEADINGS = {Role.USER: "You", Role.ASSISTANT: "Model"}


def to_markdown(
    conversation: Conversation,
    model: str,
    now: datetime,
    with_thinking: bool = False,
    with_branches: bool = False,
) -> str:
    """Return the conversation as Markdown, with front matter that names program and model.

    Args:
        model: clean name and quantisation; "" if they are not known.
        now: time of the export.
        with_branches: whether branches that are not shown follow, each under a heading.
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
    branches = list(other_branches(conversation.messages))
    written = [*conversation.messages, *(m for branch in branches for m in branch.messages)]
    names_models = len({message.model for message in written if message.model}) > 1
    lines += _message_lines(conversation.messages, "##", with_thinking, names_models)
    if with_branches:
        for branch in branches:
            role = "reply" if branch.index % 2 else "message"
            mark = f"{branch.number}/{branch.n_branches}"
            lines += [f"## Branch {mark} from {role} {branch.index // 2 + 1}", ""]
            lines += _message_lines(branch.messages, "###", with_thinking, names_models)
    return "\n".join(lines)


def _message_lines(
    messages: Sequence[ChatMessage], heading: str, with_thinking: bool, names_models: bool
) -> list[str]:
    """Return the lines of messages, each under a heading."""
    lines = []
    for message in messages:
        lines += [f"{heading} {_HEADINGS[message.role]} {message.branch_mark}".rstrip(), ""]
        if with_thinking and message.thinking is not None:
            lines += [
                *(f"> {line}".rstrip() for line in message.thinking.text.strip().split("\n")),
                "",
            ]
            lines += [f"*{thinking_summary(message.thinking)}*", ""]
        text = message.text
        if message.role is Role.USER and REFERENCE_START in text:
            text = with_names(text)
        lines += [f"*{MISSING}*" if message.is_missing else text, ""]
        if message.figures is not None or message.ending is not Ending.COMPLETE:
            footer = whole_footer(message.figures, message.ending, is_edited=message.is_edited)
            if names_models and message.model:
                footer = f"{message.model} · {footer}"
            lines += [f"*{footer}*", ""]
        if message.sources:
            lines += [f"*{sources_line(message.sources)}*", ""]
    return lines


def to_json(
    conversation: Conversation,
    model: str,
    now: datetime,
    with_thinking: bool = False,
    title: str = "",
    marks: Marks | None = None,
) -> str:
    """Return the conversation as JSON, with every message, its figures and all branches.

    The other arguments are those of ``to_markdown``.

    Args:
        title: title of the conversation; "" for none.
        marks: pin and tags; None for none.
    """
    messages = [_message_values(message, with_thinking) for message in conversation.messages]
    values: dict[str, Any] = {
        "program": "jalopy",
        "model": model,
        "saved": now.isoformat(timespec="seconds"),
        "title": title,
        "system": conversation.system,
        "messages": messages,
    }
    if marks is not None and marks.tags:
        values["tags"] = list(marks.tags)
    if marks is not None and marks.is_pinned:
        values["pinned"] = True
    if conversation.summaries:
        values["summaries"] = [asdict(summary) for summary in conversation.summaries]
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _message_values(message: ChatMessage, with_thinking: bool) -> dict[str, Any]:
    values = asdict(replace(message, alternatives=()))
    values |= {"role": message.role.value, "ending": message.ending.value}
    del values["alternatives"]
    values["others"] = [_branch_values(branch, with_thinking) for branch in message.alternatives]

    # Token ids need their model, and the folded text needs the prompt.
    removed = ["ids", "raw", "folded", "calls_at", "server_fields"]
    if not with_thinking:
        removed.append("thinking")
    for name in removed:
        del values[name]
    for name in ("calls", "results", "model"):
        if not values[name]:
            del values[name]
    if not message.alternatives:
        del values["n_older"]
    return values


def _branch_values(branch: Branch, with_thinking: bool) -> dict[str, Any]:
    """Return the values of the first message of a branch, with the messages after it."""
    first, *later = [_message_values(message, with_thinking) for message in branch]
    if later:
        first["later"] = later
    return first


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


def save_as(
    requested: str,
    conversation: Conversation,
    model: str,
    title: str = "",
    marks: Marks | None = None,
) -> str:
    """Save a conversation as Markdown or JSON, as ``/save`` does, and return a line for the user.

    Args:
        title: title of the conversation, which names the file if no name is requested.
        marks: pin and tags; None for none.

    Raises Refusal: the conversation is not saved.
    """
    extras = set()
    while requested.endswith((_WITH_THINKING, _WITH_BRANCHES)):
        requested, _, extra = requested.rpartition("+")
        requested = requested.rstrip()
        extras.add(f"+{extra}")
    if conversation.is_empty:
        raise Refusal("there is nothing to save yet")
    now = datetime.now().astimezone()
    try:
        path = choose_path(requested, now, title)
        is_json = path.suffix.lower() == ".json"
        with_thinking = _WITH_THINKING in extras
        if is_json:
            text = to_json(conversation, model, now, with_thinking, title, marks)
        else:
            with_branches = _WITH_BRANCHES in extras
            text = to_markdown(conversation, model, now, with_thinking, with_branches)
        write_new(path, text)
    except FileExistsError:
        raise Refusal(f"not saved: {path} exists already; choose another name") from None
    except FileNotFoundError as error:
        folder = clean_line(str(Path(error.filename).parent), 200)
        raise Refusal(f"not saved: there is no folder {folder}") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        raise Refusal(f"not saved: {clean_line(reason, 200)}") from None
    left_out = {}
    if any(message.thinking for message in conversation.messages):
        left_out[_WITH_THINKING] = "the thinking"
    if not is_json and any(message.alternatives for message in conversation.messages):
        left_out[_WITH_BRANCHES] = "other branches"
    left_out = {extra: what for extra, what in left_out.items() if extra not in extras}
    if not left_out:
        return f"saved: {path.absolute()}"
    pronoun = "them" if _WITH_BRANCHES in left_out else "it"
    return (
        f"saved: {path.absolute()} (without {' and '.join(left_out.values())}; "
        f"`/save PATH {' '.join(left_out)}` includes {pronoun})"
    )


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
