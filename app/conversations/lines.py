"""One line for a reply: its figures and how it ended; and one for the thinking before it."""

from __future__ import annotations

from app.conversations.conversation import Ending, ReplyFigures
from app.conversations.thinking import Thinking
from app.text import figures

_ENDING_NOTES = {
    Ending.COMPLETE: "",
    Ending.STOPPED: "stopped",
    Ending.LENGTH: "ended at the token limit",
    Ending.CONTEXT: "ended: the context is full",
    Ending.FAILED: "broken off",
    Ending.INTERRUPTED: "interrupted: the program ended",
}


def thinking_summary(thinking: Thinking) -> str:
    """Write in one line what the thinking before an answer cost."""
    tokens = "1 token" if thinking.tokens == 1 else f"{figures.count(thinking.tokens)} tokens"
    line = f"thought for {figures.seconds(thinking.duration_s)} · {tokens}"
    return line if thinking.is_closed else f"{line} · not finished"


def reply_footer(
    measured: ReplyFigures | None, ending: Ending, names_prompt: bool = True, is_edited: bool = False
) -> str:
    """Write the line that stays below a finished reply, with or without the tokens of its prompt."""
    parts = []
    if measured is not None:
        if measured.decode_tps is not None:
            parts.append(f"{figures.rate(measured.decode_tps)} tok/s{_range(measured.range_tps)}")
        if measured.first_token_s is not None:
            parts.append(f"first token {figures.seconds(measured.first_token_s)}")
        parts.append("1 token" if measured.tokens == 1 else f"{figures.count(measured.tokens)} tokens")
        if names_prompt:
            prompt = f"read {figures.count(measured.prompt_tokens)}"
            parts.append(
                f"{prompt}, {figures.count(measured.reused_tokens)} from cache"
                if measured.reused_tokens
                else f"{prompt} tokens"
            )
    if _ENDING_NOTES[ending]:
        parts.append(_ENDING_NOTES[ending])
    if is_edited:
        parts.append("edited by you")
    return " · ".join(parts)


def _range(range_tps: tuple[float, float] | None) -> str:
    """Write the lowest and highest rate; nothing where they read the same."""
    low, high = (figures.rate(one) for one in range_tps) if range_tps is not None else ("", "")
    return f" ({low}-{high})" if low != high else ""
