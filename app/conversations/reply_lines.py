"""One line for a reply: its figures and how it ended; and one for the thinking before it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.conversations.conversation import Ending, ReplyFigures
from app.reply.thinking import Thinking
from app.text import figures
from app.text.clean_text import clean_line

MOST_SOURCES = 8
"""Passages that are named below a reply."""
_ENDING_NOTES = {
    Ending.COMPLETE: "",
    Ending.STOPPED: "stopped",
    Ending.LENGTH: "ended at the token limit",
    Ending.CONTEXT: "ended: the context is full",
    Ending.REPEATED: "stopped: it repeats itself",
    Ending.FAILED: "broken off",
    Ending.INTERRUPTED: "interrupted: the program ended",
}


AGAINST_LOOPS = (
    "/continue goes on and avoids repetition, /regen answers again; "
    "/set dry_multiplier 0.8 avoids it always"
)


def thinking_summary(thinking: Thinking) -> str:
    """Write in one line what the thinking before an answer cost."""
    line = (
        f"thought for {figures.seconds(thinking.duration_s)} · "
        f"{figures.counted(thinking.tokens, 'token')}"
    )
    if thinking.is_closed:
        return line
    return f"{line} · not finished"


def reply_footer(measured: ReplyFigures | None, ending: Ending, is_edited: bool = False) -> str:
    """Write what stays below a finished reply: its figures that have room in 80 columns, and how it
    ended."""
    parts = []
    if measured is not None:
        if measured.guessed_tokens:
            guessed = f" ({figures.count(measured.guessed_tokens)} guessed)"
        else:
            guessed = ""
        parts.append(
            "1 token"
            if measured.tokens == 1
            else f"{figures.count(measured.tokens)} tokens{guessed}"
        )
        if measured.decode_tps is not None:
            parts.append(f"{figures.rate(measured.decode_tps)} tok/s")
        if measured.first_token_s is not None:
            parts.append(f"first after {figures.seconds(measured.first_token_s)}")
    if _ENDING_NOTES[ending]:
        parts.append(_ENDING_NOTES[ending])
    if is_edited:
        parts.append("edited by you")
    return " · ".join(parts)


def reply_details(measured: ReplyFigures | None) -> str:
    """Write the tokens of a reply's prompt; "" where they are not known: not every server tells."""
    if measured is None or not (measured.prompt_tokens or measured.reused_tokens):
        return ""
    if measured.reused_tokens:
        cached = f", {figures.count(measured.reused_tokens)} from cache"
    else:
        cached = " tokens"
    return f"read {figures.count(measured.prompt_tokens)}{cached}"


def whole_footer(measured: ReplyFigures | None, ending: Ending, is_edited: bool = False) -> str:
    """Write all of it in one line."""
    return " · ".join(
        filter(None, (reply_footer(measured, ending, is_edited), reply_details(measured)))
    )


def shortened(line: str, columns: int) -> str:
    """Leave out figures of speed until a line has room: the first word's time, then the rate."""
    parts = line.split(" · ")
    for pattern in ("first after .*", ".* tok/s"):
        if len(" · ".join(parts)) > columns:
            parts = [part for part in parts if not re.fullmatch(pattern, part)]
    return " · ".join(parts)


def sources_line(sources: Sequence[str], word: str = "from") -> str:
    """Name the passages that a reply was written from; "" without any."""
    more = len(sources) - MOST_SOURCES
    named = [*sources[:MOST_SOURCES], *([f"{more} more"] if more > 0 else [])]
    if named:
        return clean_line(f"{word} {' · '.join(named)}", 500)
    return ""
