"""``/think`` in words: what may be typed behind it, and what holds now."""

from __future__ import annotations

from app.program.refusals import Refusal
from app.program.settings import AUTO
from app.text.clean_text import clean_line
from engine.prompt.thinking_mode import ThinkingMode

USAGE = "/think on, off or auto; low, medium or high; or the most tokens of a thought, as /think 500"


def parse_thinking(text: str) -> str:
    """Return the mode in the words of the setting. Raises Refusal: it is none."""
    try:
        return str(ThinkingMode.parse(text))
    except ValueError:
        raise Refusal(f"'{clean_line(text, 20)}' is no way to think ({USAGE})") from None


def describe_thinking(mode: str) -> str:
    """Say how much the model is asked to think."""
    if mode == AUTO:
        return "thinking is left to the model"
    return f"thinking at most {mode} tokens" if mode.isdigit() else f"thinking {mode}"


def chosen_thinking(mode: str, trouble: str) -> str:
    """Say what holds from now on."""
    kept = trouble or "remembered for this model"
    return f"{describe_thinking(mode)} from the next message on; {kept}"
