"""Lines about a reply: its figures and ending, its thinking and its sources."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.conversations.conversation import ChatMessage, Ending, ReplyFigures
from app.reply.thinking import Thinking
from app.text import figures, guesses
from app.text.clean_text import clean_line

MOST_SOURCES = 8
"""Limit on the passages named below a reply."""
_ENDING_NOTES = {
    Ending.COMPLETE: "",
    Ending.STOPPED: "stopped",
    Ending.LENGTH: "stopped at the token limit",
    Ending.CONTEXT: "stopped: the context is full",
    Ending.REPEATED: "stopped: it kept repeating itself",
    Ending.FAILED: "failed",
    Ending.INTERRUPTED: "interrupted: the program ended",
}


AGAINST_LOOPS = (
    "/continue tries to go on without repeating · /regen tries again · "
    "/set dry_multiplier 0.8 prevents it"
)


def thinking_summary(thinking: Thinking) -> str:
    """Return a line with time and tokens of the thinking before an answer."""
    line = (
        f"thought for {figures.seconds(thinking.duration_s)} · "
        f"{figures.counted(thinking.tokens, 'token')}"
    )
    if thinking.is_closed:
        return line
    return f"{line} · not finished"


def reply_footer(
    reply_figures: ReplyFigures | None, ending: Ending, is_edited: bool = False
) -> str:
    """Return the footer of a finished reply: figures that fit 80 columns, and the ending."""
    figure_texts = []
    if reply_figures is not None:
        if reply_figures.guessed_tokens and reply_figures.guesses:
            guessed = f" ({guesses.right_of(*reply_figures.guesses)} guesses right)"
        elif reply_figures.guessed_tokens:
            guessed = f" ({figures.count(reply_figures.guessed_tokens)} guessed)"
        else:
            guessed = ""
        figure_texts.append(
            "1 token"
            if reply_figures.tokens == 1
            else f"{figures.count(reply_figures.tokens)} tokens{guessed}"
        )
        if reply_figures.decode_tps is not None:
            figure_texts.append(f"{figures.rate(reply_figures.decode_tps)} tok/s")
        if reply_figures.first_token_s is not None:
            figure_texts.append(f"first word after {figures.seconds(reply_figures.first_token_s)}")
    if _ENDING_NOTES[ending]:
        figure_texts.append(_ENDING_NOTES[ending])
    if is_edited:
        figure_texts.append("edited by you")
    return " · ".join(figure_texts)


def model_among_branches(message: ChatMessage) -> str:
    """Return the name of a reply's model if another branch is of another model; else ""."""
    names = {branch[0].model for branch in message.alternatives}
    if message.model and names - {message.model, ""}:
        return message.model
    return ""


def reply_details(reply_figures: ReplyFigures | None) -> str:
    """Return the tokens of a reply's prompt, unless the server did not report them, and its
    guesses by kind."""
    if reply_figures is None:
        return ""
    texts = []
    if reply_figures.prompt_tokens or reply_figures.reused_tokens:
        texts.append(f"{figures.count(reply_figures.prompt_tokens)} read")
    if reply_figures.reused_tokens:
        texts.append(f"{figures.count(reply_figures.reused_tokens)} cached")
    if reply_figures.guesses:
        texts.append(f"guessed {guesses.by_kind(reply_figures.guesses)}")
        texts.append(guesses.saving(reply_figures.guess_saved_s))
    return " · ".join(filter(None, texts))


def whole_footer(
    reply_figures: ReplyFigures | None, ending: Ending, is_edited: bool = False
) -> str:
    """Return footer and details in one line."""
    return " · ".join(
        filter(None, (reply_footer(reply_figures, ending, is_edited), reply_details(reply_figures)))
    )


def shortened(line: str, columns: int) -> str:
    """Shorten a footer to fit: remove guesses by kind and what they saved, then the time of the
    first word, then the rate."""
    texts = line.split(" · ")
    for pattern in ("guessed .*", "(saved|cost) .*", "first word after .*", ".* tok/s"):
        if len(" · ".join(texts)) > columns:
            texts = [text for text in texts if not re.fullmatch(pattern, text)]
    return " · ".join(texts)


def sources_line(sources: Sequence[str], word: str = "from") -> str:
    """Return a line with the sources of a reply; "" if it has none."""
    names = list(sources[:MOST_SOURCES])
    if len(sources) > MOST_SOURCES:
        names.append(f"{len(sources) - MOST_SOURCES} more")
    if names:
        return clean_line(f"{word} {' · '.join(names)}", 500)
    return ""
