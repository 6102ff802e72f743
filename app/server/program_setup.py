"""Lines of configuration that make other programs use the server, from the manual."""

from __future__ import annotations

import re

from app.program import manual

PROGRAMS = ("vim", "vscode", "claude", "codex", "opencode", "pi", "qwen", "aider")
"""Programs whose lines ``jalopy serve --for`` prints: sections of the page ``editors``."""
_PAGE = "editors"
_ADDRESS = "http://127.0.0.1:8080"
_PLACEHOLDER = re.compile(r"\bMODEL\b")
"""Place of the model's name; ANTHROPIC_MODEL is another word."""
_INDENT = "  "


def setup_lines(program: str, address: str, model_id: str) -> list[str]:
    """Return the lines for a program.

    Args:
        program: One of ``PROGRAMS``.
        address: Address of the server, without a path.
        model_id: Name of the model for clients; "" to keep the placeholder.
    """
    section = manual.page(_PAGE).partition(f"## {program}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith(_INDENT)]
    text = "\n".join(line.removeprefix(_INDENT) for line in lines).replace(_ADDRESS, address)
    return _PLACEHOLDER.sub(lambda match: model_id or match[0], text).split("\n")
